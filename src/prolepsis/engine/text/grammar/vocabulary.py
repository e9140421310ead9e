"""The model's tokens as llguidance takes them: which of them are text, and which are control tokens."""

import json
import re
from collections.abc import Sequence
from functools import cached_property

from llguidance import LLTokenizer, TokenizerWrapper

from prolepsis.engine.text.grammar.finite_numbers import FiniteNumbers

_LARK = re.compile(r'"(?:\\.|[^"\\\n])*"?|//[^\n]*|/(?:\\.|[^/\\])+/?|<([^<>\s"]+)>')
"""Strings, comments, regular expressions and names of tokens in a lark grammar; an open one reaches to the end."""


class GrammarVocabulary:
    """One model's tokens.

    llguidance takes every added token of the form `<...>` for a control token, which no text of a grammar can hold.
    Here an added token that the tokenizer does not call special is text, such as `<tool_call>` and `</think>` of many
    models: it is allowed wherever a grammar has its text.
    """

    def __init__(self, tokenizer_json: str, size: int, eos_token_ids: Sequence[int]) -> None:
        """Read `tokenizer_json`, in the format of the tokenizers library; raises `ValueError` if that is impossible."""
        self._size, eos = size, list(eos_token_ids)
        plain = LLTokenizer(tokenizer_json, n_vocab=size, eos_token=eos or None)
        added = {row["content"]: row["id"] for row in json.loads(tokenizer_json)["added_tokens"] if not row["special"]}
        self._text = {text: token for text, token in added.items() if token not in eos}
        is_text = frozenset(self._text.values())
        control = [token for token in range(size) if token not in is_text and plain.is_special_token(token)]
        tokens = [plain.decode_bytes([token]) for token in range(size)]
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(_Spelling(plain, tokens, control)), n_vocab=size, eos_token=eos or None
        )

    @cached_property
    def numbers(self) -> FiniteNumbers:
        return FiniteNumbers(self._size, lambda token: bytes(self.tokenizer.decode_bytes([token])))

    def lark(self, source: str) -> str:
        """Return a lark grammar in which tokens that are text here, and are named without quotes, stand by their id."""
        return _LARK.sub(lambda match: self._named(match[1]) or match[0], source)

    def _named(self, name: str | None) -> str | None:
        token = self._text.get(f"<{name}>")
        return None if token is None else f"<[{token}]>"


class _Spelling:
    """What llguidance asks of a tokenizer: the bytes of its tokens, and the tokens of a text that a grammar forces."""

    bos_token_id = None

    def __init__(self, plain: LLTokenizer, tokens: Sequence[bytes], control: Sequence[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = control
        self.eos_token_id = plain.eos_token
        self._plain = plain
        self._control = frozenset(control)

    def __call__(self, text: bytes) -> list[int]:
        """Return the tokens of `text`; what reads like a control token there is text."""
        tokens = self._plain.tokenize_bytes(text)
        return tokens if self._control.isdisjoint(tokens) else self._plain.greedy_tokenize(text.decode())
