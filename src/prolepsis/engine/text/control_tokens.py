"""Encodes texts that callers gave: what reads like a control token there stays text."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from prolepsis.core.given_text import GivenText, plain
from prolepsis.core.marks import RESULT, RESULT_END

HELD_CHARACTERS = 4096
"""Longer texts, or as many tokens, go to the library as a batch of one: only then it releases the interpreter."""


def _encoding(backend: Backend, text: str, *, add_special_tokens: bool) -> Encoding:
    """Return tokens and their places, without holding up other threads where the text is long."""
    if len(text) <= HELD_CHARACTERS:
        return backend.encode(text, add_special_tokens=add_special_tokens)
    [encoding] = backend.encode_batch([text], add_special_tokens=add_special_tokens)
    return encoding


@dataclass(frozen=True, slots=True)
class _FoundToken:
    """A control token in a text: the `index`-th of its tokens, from character `start` up to `end`."""

    index: int
    token: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _RenamedTokenizer:
    """The same tokenizer with other names for its control tokens, which no caller can know."""

    backend: Backend
    names: dict[int, str]
    ids: dict[int, int]  # the ids of its added tokens in the original


class ControlTokens:
    """A tokenizer's control tokens: the special ones, and the added ones that the template or this server writes."""

    def __init__(self, backend: Backend, template: str, marks: Sequence[str] = ()) -> None:
        """`marks` are texts by which answers are read, such as the mark of a call."""
        written = "\n".join((template, *marks, RESULT, RESULT_END))
        self._backend = backend
        self._texts = {
            token: added.content
            for token, added in backend.get_added_tokens_decoder().items()
            if added.special or (added.content.strip() and added.content in written)
        }

    def encode(self, text: GivenText, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`, where only what holds no given character is a control token."""
        encoding = _encoding(self._backend, text, add_special_tokens=add_special_tokens)
        tokens = self._found(text, encoding)
        written = [token for token in tokens if not text.holds_given(token.start, token.end)]
        if written == tokens:
            return encoding.ids
        renamed, parts, end, source = self._renamed, list[str](), 0, plain(text)
        for control in written:
            parts += (source[end : control.start], renamed.names[control.token])
            end = control.end
        source = "".join([*parts, source[end:]])
        encoding = _encoding(renamed.backend, source, add_special_tokens=add_special_tokens)
        words = {  # models of some tokenizers know control tokens as words
            mark.index: [token.id for char in self._texts[mark.token] for token in self._backend.model.tokenize(char)]
            for mark in self._found(source, encoding)
        }
        ids = [renamed.ids.get(token, token) for token in encoding.ids]
        return [token for i, single in enumerate(ids) for token in words.get(i, (single,))]

    def _found(self, text: str, encoding: Encoding) -> list[_FoundToken]:
        """Return the control tokens that `text` spells, without the white space that some of them take in."""
        tokens: list[_FoundToken] = []
        for index, token in enumerate(encoding.ids):
            place = encoding.token_to_chars(index) if token in self._texts else None
            if place is None:
                continue
            (start, end), content = place, self._texts[token]
            inner = text.find(content, start, end)
            if inner >= 0:
                tokens.append(_FoundToken(index, token, inner, inner + len(content)))
            elif self._normalised(content) in self._normalised(text[start:end]):  # else it stands for unknown text
                tokens.append(_FoundToken(index, token, start, end))
        return tokens

    def _normalised(self, text: str) -> str:
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    @cached_property
    def _renamed(self) -> _RenamedTokenizer:
        original, secret = self._backend, secrets.token_hex(8)
        backend = Backend(original.model)
        backend.normalizer, backend.pre_tokenizer = original.normalizer, original.pre_tokenizer
        backend.post_processor = original.post_processor
        added = original.get_added_tokens_decoder()
        names = {token: f"\ufdd0{secret} {token}\ufdd1" for token in self._texts}
        kept = [entry for token, entry in added.items() if token not in names]
        new = [AddedToken(names[i], lstrip=added[i].lstrip, rstrip=added[i].rstrip, normalized=False) for i in names]
        backend.add_tokens([*kept, *new])
        originals = {names.get(token, entry.content): token for token, entry in added.items()}
        return _RenamedTokenizer(
            backend, names, {i: originals[entry.content] for i, entry in backend.get_added_tokens_decoder().items()}
        )
