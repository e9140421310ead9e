"""Text to token ids and back, with the model's chat template; built without importing transformers where possible."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as Backend

from prolepsis.core.errors import InvalidParameter, ModelLoadError
from prolepsis.models.chat_template import ChatTemplate, Message


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a folder or a GGUF file says of a tokenizer."""

    backend: Backend
    template: str | None
    special_tokens: Mapping[str, str]
    """bos_token, eos_token, unk_token, pad_token: those the model has."""
    eos_token_ids: tuple[int, ...]


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._template = ChatTemplate(parts.template, parts.special_tokens) if parts.template else None
        self.eos_token_ids = parts.eos_token_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; `add_special_tokens` adds what the model wants around a text, such as BOS."""
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; bytes that are not whole UTF-8 characters become U+FFFD."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Return the prompt of `messages`, ready for the answer unless `add_generation_prompt` is False.

        Raises `InvalidParameter` where the model has no chat template or the template refuses the messages.
        """
        if self._template is None:
            raise InvalidParameter(
                "the model has no chat template; allowed: plain text, through completions", param="messages"
            )
        text = self._template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables
        )
        return self.encode(text, add_special_tokens=False)

    @property
    def chat_template(self) -> str | None:
        return self._template.source if self._template else None

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Ids by token as the vocabulary spells it, added tokens included."""
        return self._backend.get_vocab(with_added_tokens=True)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id; a model's logits may be wider."""
        return max(self.vocab.values(), default=-1) + 1

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens: never part of a text unless asked for."""
        return frozenset(i for i, token in self._backend.get_added_tokens_decoder().items() if token.special)

    def to_json(self) -> str:
        """Return the tokenizer in the tokenizers library's own format, without padding and truncation."""
        state = json.loads(self._backend.to_str())
        return json.dumps(state | {"padding": None, "truncation": None})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over vocabulary, merges, special tokens and chat template, in hexadecimal."""
        state = json.loads(self._backend.to_str())
        parts = [sorted(self.vocab.items()), state["model"].get("merges"), state["added_tokens"], self.chat_template]
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()

    def vocabulary_difference(self, other: "Tokenizer") -> str | None:
        """Say how `other` would read or write token ids differently, or None: draft and target must agree."""
        if self.vocab == other.vocab:
            return None
        if len(self.vocab) != len(other.vocab):
            return f"{len(self.vocab)} tokens against {len(other.vocab)}"
        token = min(t for t in self.vocab if self.vocab[t] != other.vocab.get(t))
        return f"token {token!r} has id {self.vocab[token]} against {other.vocab.get(token)}"


def load_tokenizer(path: Path) -> Tokenizer:
    """Build the tokenizer of a model folder or GGUF file; raises `ModelLoadError` naming the file and the fault."""
    return Tokenizer(tokenizer_parts(path))


def tokenizer_parts(path: Path) -> TokenizerParts:
    """Read the tokenizer of a model folder or GGUF file; raises `ModelLoadError` as `load_tokenizer` does."""
    if path.is_dir():
        return folder_parts(path)
    from prolepsis.models.gguf_tokenizer import gguf_parts

    return gguf_parts(path)


def save_tokenizer(path: Path, folder: Path) -> None:
    """Write the tokenizer of the model at `path` into `folder`, as transformers keeps it."""
    parts = tokenizer_parts(path)
    parts.backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **parts.special_tokens}, indent=2))
    if parts.template:
        (folder / "chat_template.jinja").write_text(parts.template)


def folder_parts(folder: Path) -> TokenizerParts:
    """Read tokenizer.json, tokenizer_config.json and chat_template.jinja of a model folder."""
    backend = _folder_backend(folder)
    config = _json_object(folder / "tokenizer_config.json")
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    special = {name: text for name in names if (text := _token_text(config.get(name))) is not None}
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text() if template_file.is_file() else _template(config.get("chat_template"))
    eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return TokenizerParts(backend, template, special, () if eos is None else (eos,))


def _folder_backend(folder: Path) -> Backend:
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return Backend.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelLoadError(f"{file} is not a tokenizer: {error}") from error
    from transformers import AutoTokenizer

    try:
        backend = AutoTokenizer.from_pretrained(str(folder), local_files_only=True).backend_tokenizer
    except Exception as error:  # transformers has no common base for a tokenizer it cannot build
        raise ModelLoadError(f"{folder} holds no tokenizer.json, nor can one be made: {error}") from error
    assert isinstance(backend, Backend)
    return backend


def _json_object(file: Path) -> dict[str, object]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text())
    except ValueError as error:
        raise ModelLoadError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file} is not a JSON object")
    return value


def _token_text(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template(value: object) -> str | None:
    """A template, or a list of named ones, of which 'default' is taken."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
