"""Two tiny tokenizers: the 24 tokens of the table model, enough for some JSON, and all bytes with some words."""

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.grammar.grammars import Grammars

EOS = 0
_MERGES = [
    ('"', ":"),
    ("Ġ", '"'),
    ("{", '"'),
    (",", "Ġ"),
    ("a", "b"),
    ('"', "}"),
    ("[", "0"),
    ("0", "1"),
    ("]", "}"),
    ("ab", "a"),
    ("1", "]"),
]


def few_tokens() -> Tokenizer:
    """Return a tokenizer with the table model's vocabulary of 24 tokens, 0 ends a sequence."""
    return _tokenizer([*'{}[]":,ab01', "Ġ"], _MERGES)


def all_bytes() -> Tokenizer:
    """Return a tokenizer of 256 bytes, a dozen words and the end of sequence."""
    words = [("t", "r"), ("u", "e"), ("tr", "ue"), ("n", "a"), ("m", "e"), ("na", "me"), ("name", '"'), ('name"', ":")]
    return _tokenizer(sorted(pre_tokenizers.ByteLevel.alphabet()), [*words, *_MERGES])


def _tokenizer(letters: Sequence[str], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    tokens = ["<eos>", *letters, *(a + b for a, b in merges)]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", normalized=False, special=True)])
    return tokenizer


def grammars(tokenizer: Tokenizer, *, max_compiled: int = 8) -> Grammars:
    return Grammars(tokenizer.to_str, tokenizer.get_vocab_size(), (EOS,), max_compiled=max_compiled)


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True))


def token_id(tokenizer: Tokenizer, text: str) -> int:
    """Return the id of what the vocabulary spells `text`."""
    found = tokenizer.token_to_id(text)
    assert found is not None
    return int(found)


def json_schema(schema: object) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema))


RECORD: dict[str, object] = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"enum": [0, 1, 10]}, "maxItems": 6},
        "b": {"type": "string", "pattern": "^[ab]{0,8}$"},
        "ab": {"enum": ["a", "ba", "abab"]},
    },
    "required": ["a", "b", "ab"],
    "additionalProperties": False,
}
"""Can be written with `few_tokens`; at most 60 of them."""
