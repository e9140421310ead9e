"""Checks that two models mean the same by each token id."""

import hashlib
from collections.abc import Mapping
from typing import Protocol

from prolepsis.core.errors import VocabularyMismatch

_SHOWN = 3  # differing tokens named in the error


class ComparedVocabulary(Protocol):
    """The parts of a tokenizer that are compared."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def vocab(self) -> Mapping[str, int]: ...


def require_same_vocabulary(draft: ComparedVocabulary, target: ComparedVocabulary) -> None:
    """Raise `VocabularyMismatch` saying what differs, unless every token has the same id in both.

    Fingerprints may differ where ids agree (another chat template): the maps decide.
    """
    if draft.fingerprint == target.fingerprint:
        return
    ours, theirs = dict(draft.vocab), dict(target.vocab)
    differing = sorted((t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t)), key=str)
    if not differing:
        return
    ids = ((token, ours.get(token, "absent"), theirs.get(token, "absent")) for token in differing[:_SHOWN])
    shown = ", ".join(f"{token!r}: {own} in the draft, {other} in the target" for token, own, other in ids)
    raise VocabularyMismatch(
        f"draft and target model do not share a vocabulary: {len(ours)} tokens in the draft, {len(theirs)} in the "
        f"target, {len(differing)} differ ({shown}{', ...' if len(differing) > _SHOWN else ''})"
    )


def vocabulary_digest(vocabulary: ComparedVocabulary) -> bytes:
    """Return SHA-256 over all tokens with their ids: equal where `require_same_vocabulary` finds no difference."""
    digest = hashlib.sha256()
    for token, number in sorted(vocabulary.vocab.items(), key=lambda item: item[1]):
        digest.update(f"{number}\0{token}\0".encode("utf-8", "surrogatepass"))
    return digest.digest()
