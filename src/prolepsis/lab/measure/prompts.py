"""Prompts of a measurement: JSON lines with `id`, `category` and `prompt` (a user's message).

`"synthetic": true` says that a prompt was made by rule or at random; figures of such text are not to be quoted.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import numbered_lines, read_text
from prolepsis.engine.text.tokenizer import ChatTokenizer, encode_message

DEFAULT_PROMPTS = "prompts.jsonl"
"""The set shipped inside the package."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's message before the chat template."""

    id: str
    category: str
    text: str
    is_synthetic: bool = False  # made by rule or at random, not written for a reader


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as token ids, the same for every contender."""

    id: str
    category: str
    token_ids: tuple[int, ...]
    is_synthetic: bool = False
    text: str = ""  # in place of the token ids, for a server


def load_prompts(path: Path | None, categories: Sequence[str] = ()) -> tuple[Prompt, ...]:
    """Read the prompts of `path` (None: the shipped set), of `categories` only if there are any.

    Raises `ConfigError` that names the file and line at fault, or the known categories.
    """
    text = read_text(path, "prompts") if path else (files(__package__) / DEFAULT_PROMPTS).read_text(encoding="utf-8")
    name, prompts = str(path) if path else "the shipped prompt set", dict[str, Prompt]()
    for number, line in numbered_lines(text):
        prompt = _prompt(line, f"{name}, line {number}")
        if prompt.id in prompts:
            raise ConfigError(f"{name} has the id {prompt.id!r} twice", param="prompts")
        prompts[prompt.id] = prompt
    if not prompts:
        raise ConfigError(f"{name} holds no prompts", param="prompts")
    known = dict.fromkeys(prompt.category for prompt in prompts.values())
    for category in categories:
        if category not in known:
            raise ConfigError(f"{name} has no category {category!r}; it has {', '.join(known)}", param="categories")
    return tuple(prompt for prompt in prompts.values() if not categories or prompt.category in categories)


def encode_prompts(prompts: Sequence[Prompt], tokenizer: ChatTokenizer) -> tuple[EncodedPrompt, ...]:
    """Apply the model's chat template to each prompt as one user message."""
    return tuple(
        EncodedPrompt(p.id, p.category, tuple(encode_message(p.text, tokenizer)), p.is_synthetic) for p in prompts
    )


def shipped_token_ids(tokenizer: ChatTokenizer) -> Sequence[Sequence[int]]:
    """Return the shipped prompts as token ids."""
    return [prompt.token_ids for prompt in encode_prompts(load_prompts(None), tokenizer)]


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
        reserved = "which is reserved for all prompts together"
        raise ConfigError(f"{where} has the category 'all', {reserved}", param="prompts")
    if not isinstance(is_synthetic := record.get("synthetic", False), bool):
        raise ConfigError(f"{where} has {is_synthetic!r} under 'synthetic'; allowed: true, false", param="prompts")
    return Prompt(record["id"], record["category"], record["prompt"], is_synthetic)
