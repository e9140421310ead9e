"""Vocabularies as GGUF files hold them: small ones of both kinds with marks that are one token, and those of files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
from tokenizers.pre_tokenizers import ByteLevel

from prolepsis.engine.models.files.gguf_container import Value
from prolepsis.engine.models.files.gguf_file import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, GgufFile
from prolepsis.engine.text.token_bytes import SPACE

Fields = dict[str, Value]
"""Metadata of a file by key."""
TEMPLATE_KEY = "tokenizer.chat_template"

ADDED = {
    **dict.fromkeys(("<|im_start|>", "<|im_end|>"), CONTROL),
    **dict.fromkeys(("<tool_call>", "</tool_call>", "<think>", "</think>"), USER_DEFINED),
}
"""Texts that are one token of the small vocabularies, and their kinds."""
SPARE = ("[PAD", "<|reserved_special_token_", "<|placeholder", "<unused")
"""Beginnings of tokens that published vocabularies keep for later."""


def plain_fields() -> Fields:
    """Return a byte-level BPE: begin and end of a text, all bytes, and a few words."""
    merges = ["h e", "l l", "he ll", "Ġ w", "hell o"]
    texts = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    rows = [("<s>", CONTROL), ("</s>", CONTROL), *((text, NORMAL) for text in texts)]
    return _fields(rows, bos=0, eos=1) | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.merges": list[Value](merges),
    }


def byte_level_fields() -> Fields:
    """Return the same with the added texts."""
    return with_tokens(plain_fields(), ADDED)


def sentencepiece_fields() -> Fields:
    """Return a SentencePiece BPE with the added texts; what it lacks, such as the end of a line, it spells in bytes."""
    words = ["he", "ll", "hell", "hello", "wo", "wor", "ld", "world", f"{SPACE}w", f"{SPACE}hello"]
    texts = [*words, SPACE, *"abcdefghijklmnopqrstuvwxyz", *'{}[]":,.-0123456789']
    rows = [
        *(("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)),
        *((f"<0x{byte:02X}>", BYTE) for byte in range(256)),
        *((text, NORMAL) for text in texts),
    ]
    fields = _fields(rows, bos=1, eos=2) | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": [-float(i) for i in range(len(rows))],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }
    return with_tokens(fields, ADDED)


OWN = {"byte-level": byte_level_fields, "sentencepiece": sentencepiece_fields}
"""The small vocabularies by name."""


def _fields(rows: Sequence[tuple[str, int]], bos: int, eos: int) -> Fields:
    return {
        "tokenizer.ggml.tokens": [text for text, _ in rows],
        "tokenizer.ggml.token_type": [kind for _, kind in rows],
        "tokenizer.ggml.bos_token_id": bos,
        "tokenizer.ggml.eos_token_id": eos,
    }


def fields_of(path: Path) -> Fields:
    """Return what the file at `path` says of its tokenizer."""
    return {key: value for key, value in GgufFile(path).metadata.items() if key.startswith("tokenizer.")}


def tokens_of(fields: Fields) -> list[str]:
    tokens = fields["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    return [str(one) for one in tokens]


def with_tokens(fields: Fields, added: Mapping[str, int]) -> Fields:
    """Return the vocabulary with more tokens, by text and kind, in the rows that it keeps for such, else behind all.

    A text that is a token already keeps its row.
    """
    tokens, kinds = tokens_of(fields), fields["tokenizer.ggml.token_type"]
    scores = fields.get("tokenizer.ggml.scores")
    assert isinstance(kinds, list)
    rows, kinds = {text: i for i, text in enumerate(tokens)}, list(kinds)
    spare = (i for i, text in enumerate(tokens) if text.startswith(SPARE))
    for text, kind in added.items():
        row = rows[text] if text in rows else next(spare, len(tokens))
        tokens[row : row + 1], kinds[row : row + 1] = [text], [kind]
    found = {"tokenizer.ggml.tokens": list[Value](tokens), "tokenizer.ggml.token_type": kinds}
    if isinstance(scores, list):
        found["tokenizer.ggml.scores"] = scores + [-1000.0] * (len(tokens) - len(scores))
    return {**fields, **found}


def write_fields(writer: gguf.GGUFWriter, fields: Fields) -> None:
    """Write metadata with the types that llama.cpp's files have."""
    kinds = gguf.GGUFValueType
    of = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}
    for key, value in fields.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, of[type(value)])


def write_vocabulary(path: Path, fields: Fields) -> Path:
    """Write a file of a vocabulary and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    write_fields(writer, fields)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
