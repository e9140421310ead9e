"""The bytes that each token of a tokenizer stands for, by its decoder."""

import json
import re
from functools import cached_property

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

SPACE = "\u2581"  # stands for a space in SentencePiece's tokens
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """One tokenizer's tokens as bytes; what its decoder does is read once."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def of(self, token_id: int) -> bytes:
        """Return a token's bytes, which may be part of a character; control tokens have the bytes of their name."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._added:
            return self._added[token_id].encode()
        if "ByteLevel" in self._decoders:
            return b"".join(_BYTES_OF.get(character, character.encode()) for character in token)
        if "ByteFallback" in self._decoders and (byte := _BYTE.fullmatch(token)):
            return bytes.fromhex(byte[1])
        if self._decoders & {"ByteFallback", "Metaspace"}:
            return token.replace(SPACE, " ").encode()
        return self._backend.decode([token_id], skip_special_tokens=False).encode()

    @cached_property
    def _added(self) -> dict[int, str]:
        return {i: token.content for i, token in self._backend.get_added_tokens_decoder().items()}

    @cached_property
    def _decoders(self) -> frozenset[str]:
        return frozenset(_types(json.loads(self._backend.to_str())["decoder"]))


def _types(decoder: dict[str, object] | None) -> list[str]:
    if decoder is None:
        return []
    parts = decoder.get("decoders")
    inner = [kind for part in parts for kind in _types(part)] if isinstance(parts, list) else []
    return [str(decoder["type"]), *inner]


def _byte_alphabet() -> dict[str, bytes]:
    """Return the bytes that the characters of byte-level vocabularies stand for (GPT-2's table).

    Printable bytes stand for themselves; the others, in their order, are the characters from 256 on.
    """
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    others = iter(range(256, 512))
    return {chr(byte) if chr(byte) in alphabet else chr(next(others)): bytes([byte]) for byte in range(256)}


_BYTES_OF = _byte_alphabet()
