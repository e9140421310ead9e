"""Reads tokenizers from model folders and GGUF files."""

import json
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
    special = {entry.content for entry in added if entry.special} - ends
    as_text = frozenset(token for token in special if any(token in mark for mark in formats.texts))
    backend = parts.backend
    if as_text:  # special tokens would not be seen
        state = json.loads(backend.to_str())
        for token in state["added_tokens"]:
            token["special"] = token["special"] and token["content"] not in as_text
        backend = Backend.from_str(json.dumps(state))

    def spells(text: str) -> bool:
        """Say whether tokens give a text back; some tokenizers put a space behind added tokens, as a reader allows."""
        tokens = backend.encode(f"a {text} b", add_special_tokens=False).ids
        return "".join(text.split()) in "".join(backend.decode(tokens, skip_special_tokens=False).split())

    if formats.tools is not None and not all(spells(text.strip()) for text in formats.tools.texts):
        formats = replace(formats, tools=None)
    return replace(parts, backend=backend, as_text=as_text, formats=formats)


def tokenizer_parts(source: ModelSource) -> TokenizerParts:
    """Read the tokenizer of a model folder or GGUF file; raises `ModelLoadError` with file and reason."""
    folder = open_model(source) if isinstance(source, Path) else source
    if not isinstance(folder, Path):
        from prolepsis.engine.models.files.gguf_tokenizer import gguf_parts

        return gguf_parts(folder)
    backend, config = _folder_backend(folder), json_object(folder / "tokenizer_config.json")
    stated = {name: config.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in stated.items()}
    special = {name: text for name, text in texts.items() if isinstance(text, str)}
    eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    added = backend.get_added_tokens_decoder()
    control, others = (
        {token.content: i for i, token in added.items() if token.special == is_special} for is_special in (True, False)
    )
    ends = dict.fromkeys([*(() if eos is None else (eos,)), *named_ends(control, others)])
    return TokenizerParts(backend, one_template(_templates(folder, config.get("chat_template"))), special, tuple(ends))


def save_tokenizer(path: Path, folder: Path) -> None:
    """Write the tokenizer of the model at `path` into `folder`, in the form of transformers."""
    parts = tokenizer_parts(path)
    parts.backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **parts.special_tokens}, indent=2))
    if parts.template:
        (folder / "chat_template.jinja").write_text(parts.template)


def _templates(folder: Path, configured: object) -> dict[str, str]:
    """Return the templates that are files of their own, by name; else those of the configuration, a text or a list."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (default := folder / "chat_template.jinja").is_file():
        files["default"] = default
    templates = dict[str, str]()
    for name, file in files.items():
        try:
            templates[name] = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{file} cannot be read: {error}") from error
    if templates:
        return templates
    entries = configured if isinstance(configured, list) else [{"name": "default", "template": configured}]
    named = {entry.get("name"): entry.get("template") for entry in entries if isinstance(entry, dict)}
    return {str(name): text for name, text in named.items() if isinstance(text, str)}


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
