"""SentencePiece's BPE from the vocabulary of a GGUF file (Llama 2, Mistral, Gemma), in the tokenizers library.

SentencePiece (arXiv 1808.06226) merges the neighbours whose union is the token with the highest score. Merges by rank
do the same: one for each way to cut a token into two others, in the order of the scores. Text that no token covers
is spelled in bytes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from prolepsis.engine.text.token_bytes import SPACE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens, by SentencePiece's number."""


@dataclass(frozen=True, slots=True)
class SentencePieceVocabulary:
    """Tokens by id, with their scores and kinds; spaces are written as `SPACE` except in user-defined tokens."""

    tokens: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, in hexadecimal."""
        return sha256(json.dumps([self.tokens, self.scores, self.kinds]).encode()).hexdigest()


def sentencepiece(vocabulary: SentencePieceVocabulary, unknown: str | None, *, space_prefix: bool) -> Backend:
    """Return the tokenizer of `vocabulary`, without the tokens around a text.

    `space_prefix`: a space is put before a text, and before what follows a control token. Control tokens in a text are
    found as such, user-defined ones (runs of spaces, tags) are taken whole, the longest first.
    """
    tokens, kinds = vocabulary.tokens, vocabulary.kinds
    ids = {token: i for i, token in enumerate(tokens)}
    model = BPE(
        vocab=ids, merges=merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in set(kinds)
    )
    backend = Backend(model)
    spaces = normalizers.Replace(" ", SPACE)
    texts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        texts.append(decoders.Strip(" ", left=1))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(texts)
    of_kind = {kind: [token for token, k in zip(tokens, kinds, strict=True) if k == kind] for kind in set(kinds)}
    control = [*of_kind.get(UNKNOWN, ()), *of_kind.get(CONTROL, ())]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    own = of_kind.get(USER_DEFINED, ())
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])
    return backend


def merges(vocabulary: SentencePieceVocabulary) -> list[tuple[str, str]]:
    """Return the pairs of tokens whose union is a token, the union with the highest score first.

    Of the pairs of one token the one with the longest left part comes first: that is where a run of equal characters
    is cut when it is merged from the left.
    """
    rows = zip(vocabulary.tokens, vocabulary.scores, vocabulary.kinds, strict=True)
    scored = {token: score for token, score, kind in rows if kind == NORMAL}
    return [
        (token[:cut], token[cut:])
        for token in sorted(scored, key=scored.__getitem__, reverse=True)
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in scored and token[cut:] in scored
    ]
