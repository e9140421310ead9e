"""Prompts of a measurement: JSON lines with `id`, `category` and `prompt` (a user's message)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from prolepsis.core.errors import ConfigError, InvalidParameter

DEFAULT_PROMPTS = "prompts.jsonl"
"""The set shipped inside the package."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's message before the chat template."""

    id: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as token ids, the same for every contender."""

    id: str
    category: str
    token_ids: tuple[int, ...]


class ChatTokenizer(Protocol):
    """The part of a tokenizer needed here; `models.tokenizer.Tokenizer` is the real one."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def chat_template(self) -> str | None: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, object]]) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


def load_prompts(path: Path | None, categories: Sequence[str] = ()) -> tuple[Prompt, ...]:
    """Read the prompts of `path` (None: the shipped set), of `categories` only if there are any.

    Raises `ConfigError` that names the file and line at fault, or the known categories.
    """
    source, name = (path, str(path)) if path else (files("prolepsis") / DEFAULT_PROMPTS, "the shipped prompt set")
    try:
        lines = source.read_text(encoding="utf-8").split("\n")  # splitlines would cut at U+2028 too
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} cannot be read as UTF-8 text: {error}", param="prompts") from error
    prompts = [_prompt(line, f"{name}, line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    _check_unique(prompts, name)
    return _of_categories(prompts, categories, name)


def encode_prompts(prompts: Sequence[Prompt], tokenizer: ChatTokenizer) -> tuple[EncodedPrompt, ...]:
    """Apply the model's chat template to each prompt as one user message."""
    return tuple(EncodedPrompt(p.id, p.category, tuple(encode_message(p.text, tokenizer))) for p in prompts)


def encode_message(text: str, tokenizer: ChatTokenizer, *, system: str | None = None) -> list[int]:
    """Apply the model's chat template to a user's message; a model that has none gets the text to continue it.

    Raises `InvalidParameter` for a system message that no template can take.
    """
    if tokenizer.chat_template is None:
        if system is not None:
            message = "the model has no chat template, so it takes no system message; allowed: a prompt to continue"
            raise InvalidParameter(message, param="system")
        return tokenizer.encode(text)
    messages = [] if system is None else [{"role": "system", "content": system}]
    return tokenizer.apply_chat_template([*messages, {"role": "user", "content": text}])


def _prompt(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}", param="prompts") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{where} is not a JSON object", param="prompts")
    for key in ("id", "category", "prompt"):
        if not isinstance(record.get(key), str) or not record[key]:
            raise ConfigError(f"{where} has no text under {key!r}; needed: id, category, prompt", param="prompts")
    if record["category"] == "all":
        raise ConfigError(
            f"{where} has the category 'all', which is reserved for all prompts together", param="prompts"
        )
    return Prompt(record["id"], record["category"], record["prompt"])


def _check_unique(prompts: Sequence[Prompt], name: str) -> None:
    if not prompts:
        raise ConfigError(f"{name} holds no prompts", param="prompts")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise ConfigError(f"{name} has the id {prompt.id!r} twice", param="prompts")
        seen.add(prompt.id)


def _of_categories(prompts: Sequence[Prompt], categories: Sequence[str], name: str) -> tuple[Prompt, ...]:
    known = list(dict.fromkeys(p.category for p in prompts))
    for category in categories:
        if category not in known:
            raise ConfigError(f"{name} has no category {category!r}; it has {', '.join(known)}", param="categories")
    return tuple(p for p in prompts if not categories or p.category in categories)
