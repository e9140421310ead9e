"""Reads tokenizers from model folders and GGUF files."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer as Backend

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.generation_config import json_object
from prolepsis.engine.models.files.source import ModelSource, open_model
from prolepsis.engine.text.answer_formats.choose import AUTO, answer_formats
from prolepsis.engine.text.chat_template import one_template
from prolepsis.engine.text.model_tokenizer import ModelTokenizer, TokenizerParts, template_of
from prolepsis.engine.text.named_tokens import named_ends


def load_tokenizer(source: ModelSource, config: EngineConfig | None = None) -> ModelTokenizer:
    """Build the tokenizer of a model folder or GGUF file; formats that `config` names override what its template shows.

    Raises `ModelLoadError` with file and reason, `ConfigError` for a format that is not known.
    """
    names = () if config is None else (config.tool_format, config.reasoning_format)
    return ModelTokenizer(with_formats(tokenizer_parts(source), *names))


def with_formats(parts: TokenizerParts, tool_format: str = AUTO, reasoning_format: str = AUTO) -> TokenizerParts:
    """Return the parts with how the model writes calls and reasoning; raises `ConfigError` for unknown names.

    A form whose texts the vocabulary cannot spell is none: its calls could not be read.
    """
    formats = answer_formats(template_of(parts), tools=tool_format, reasoning=reasoning_format)
    ends = {parts.special_tokens[name] for name in ("bos_token", "eos_token") if name in parts.special_tokens}
    added = parts.backend.get_added_tokens_decoder().values()
    special = {one.content for one in added if one.special} - ends
    as_text = frozenset(token for token in special if any(token in mark for mark in formats.texts))
    backend = _with_text(parts.backend, as_text)
    if formats.tools is not None and not all(_spells(backend, text.strip()) for text in formats.tools.texts):
        formats = replace(formats, tools=None)
    return replace(parts, backend=backend, as_text=as_text, formats=formats)


def _spells(backend: Backend, text: str) -> bool:
    """Say whether tokens give the text back; some tokenizers put a space behind added tokens, as a reader allows."""
    tokens = backend.encode(f"a {text} b", add_special_tokens=False).ids
    return "".join(text.split()) in "".join(backend.decode(tokens, skip_special_tokens=False).split())


def tokenizer_parts(source: ModelSource) -> TokenizerParts:
    """Read the tokenizer of a model folder or GGUF file; raises `ModelLoadError` with file and reason."""
    opened = open_model(source) if isinstance(source, Path) else source
    if isinstance(opened, Path):
        return folder_parts(opened)
    from prolepsis.engine.models.files.gguf_tokenizer import gguf_parts

    return gguf_parts(opened)


def _with_text(backend: Backend, as_text: Collection[str]) -> Backend:
    """Return the tokenizer in which these tokens are not special: they would not be seen."""
    if not as_text:
        return backend
    state = json.loads(backend.to_str())
    for one in state["added_tokens"]:
        one["special"] = one["special"] and one["content"] not in as_text
    return Backend.from_str(json.dumps(state))


def save_tokenizer(path: Path, folder: Path) -> None:
    """Write the tokenizer of the model at `path` into `folder`, in the form of transformers."""
    parts = tokenizer_parts(path)
    parts.backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **parts.special_tokens}, indent=2))
    if parts.template:
        (folder / "chat_template.jinja").write_text(parts.template)


def folder_parts(folder: Path) -> TokenizerParts:
    """Read tokenizer.json, tokenizer_config.json and chat_template.jinja of a model folder."""
    backend = _folder_backend(folder)
    config = json_object(folder / "tokenizer_config.json")
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    special = {name: text for name in names if (text := _token_text(config.get(name))) is not None}
    template = one_template(_folder_templates(folder) or _named(config.get("chat_template")))
    return TokenizerParts(backend, template, special, _ends(backend, special.get("eos_token")))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read: {error}") from error


def _ends(backend: Backend, eos: str | None) -> tuple[int, ...]:
    """Return the tokens that end a text: the one that the folder states, and added ones that end one by name."""
    stated = None if eos is None else backend.token_to_id(eos)
    added = backend.get_added_tokens_decoder()
    special, others = (
        {token.content: i for i, token in added.items() if token.special == is_special} for is_special in (True, False)
    )
    return tuple(dict.fromkeys([*(() if stated is None else (stated,)), *named_ends(special, others)]))


def _folder_backend(folder: Path) -> Backend:
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return Backend.from_file(str(file))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # tokenizers raises bare Exception, and panics of Rust as BaseException
            raise ModelLoadError(f"{file} is not a tokenizer: {error}") from error
    from transformers import AutoTokenizer

    try:
        backend = AutoTokenizer.from_pretrained(str(folder), local_files_only=True).backend_tokenizer
    except Exception as error:  # transformers has no common base class for these errors
        raise ModelLoadError(f"{folder} holds no tokenizer.json, nor can one be made: {error}") from error
    assert isinstance(backend, Backend)
    return backend


def _token_text(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _folder_templates(folder: Path) -> dict[str, str]:
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (default := folder / "chat_template.jinja").is_file():
        files["default"] = default
    return {name: _read(path) for name, path in files.items()}


def _named(value: object) -> dict[str, str]:
    """Return the templates of a configuration, a text or a list with names, by name."""
    entries = value if isinstance(value, list) else [{"name": "default", "template": value}]
    named = {entry.get("name"): entry.get("template") for entry in entries if isinstance(entry, dict)}
    return {str(name): text for name, text in named.items() if isinstance(text, str)}
