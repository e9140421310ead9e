"""Reads tokenizers from model folders and GGUF files."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.processors import ByteLevel, TemplateProcessing
from tokenizers.processors import Sequence as SequenceProcessor

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.answer_formats.choose import AUTO, answer_formats
from prolepsis.models.files.chat_template import ChatTemplate, one_template
from prolepsis.models.files.generation_config import json_object
from prolepsis.models.files.gguf import CONTROL, USER_DEFINED, GgufFile
from prolepsis.models.files.sentencepiece import Vocabulary, sentencepiece
from prolepsis.models.files.template_needs import FittingTemplate
from prolepsis.models.files.tokenizer import Tokenizer, TokenizerParts
from prolepsis.models.files.weights import ModelSource


def load_tokenizer(source: ModelSource, *, tool_format: str = AUTO, reasoning_format: str = AUTO) -> Tokenizer:
    """Build the tokenizer of a model folder or GGUF file; names of formats override what its template shows.

    Raises `ModelLoadError` with file and reason, `ConfigError` for a format that is not known.
    """
    return Tokenizer(with_formats(tokenizer_parts(source), tool_format, reasoning_format))


def with_formats(parts: TokenizerParts, tool_format: str = AUTO, reasoning_format: str = AUTO) -> TokenizerParts:
    """Return the parts with how the model writes calls and reasoning; raises `ConfigError` for unknown names."""
    template = FittingTemplate(ChatTemplate(parts.template, parts.special_tokens)) if parts.template else None
    formats = answer_formats(template, tools=tool_format, reasoning=reasoning_format)
    ends = {parts.special_tokens[name] for name in ("bos_token", "eos_token") if name in parts.special_tokens}
    return replace(parts, backend=_with_marks_as_text(parts.backend, formats.texts, ends), formats=formats)


def tokenizer_parts(source: ModelSource) -> TokenizerParts:
    """Read the tokenizer of a model folder or GGUF file; raises `ModelLoadError` with file and reason."""
    if isinstance(source, Path) and source.is_dir():
        return folder_parts(source)
    return gguf_parts(source if isinstance(source, GgufFile) else GgufFile(source))


def _with_marks_as_text(backend: Backend, marks: Sequence[str], ends: Collection[str]) -> Backend:
    """Return the tokenizer in which no token of the marks that answers are read by is special: it would not be seen."""
    added = backend.get_added_tokens_decoder().values()
    seen = {one.content for one in added if one.special and any(one.content in mark for mark in marks)} - set(ends)
    if not seen:
        return backend
    state = json.loads(backend.to_str())
    for one in state["added_tokens"]:
        one["special"] = one["special"] and one["content"] not in seen
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
    except Exception as error:  # transformers has no common base class for these errors
        raise ModelLoadError(f"{folder} holds no tokenizer.json, nor can one be made: {error}") from error
    assert isinstance(backend, Backend)
    return backend


def _token_text(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _folder_templates(folder: Path) -> dict[str, str]:
    """Return the templates that are files of their own, by name."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (default := folder / "chat_template.jinja").is_file():
        files["default"] = default
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def _named(value: object) -> dict[str, str]:
    """Return the templates of a configuration, a text or a list with names, by name."""
    entries = value if isinstance(value, list) else [{"name": "default", "template": value}]
    named = {entry.get("name"): entry.get("template") for entry in entries if isinstance(entry, dict)}
    return {str(name): text for name, text in named.items() if isinstance(text, str)}


GPT2_SPLIT = ("gpt-2", "gpt2")
DIGITS_SPLIT = ("smollm",)
LLAMA3_SPLIT = ("llama-bpe", "llama3", "llama-v3")
QWEN2_SPLIT = ("qwen2", "deepseek-r1-qwen")
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gguf_parts(file: GgufFile) -> TokenizerParts:
    """Read the tokenizer of a GGUF file; raises `ModelLoadError` for a kind that cannot be built."""
    tokens = file.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelLoadError(f"{file.path} holds no vocabulary (tokenizer.ggml.tokens)")
    special = {}
    for name in ("bos", "eos", "unknown", "padding"):
        token = file.integer(f"tokenizer.ggml.{name}_token_id")
        if token is not None and 0 <= token < len(tokens):
            special[{"unknown": "unk_token", "padding": "pad_token"}.get(name, f"{name}_token")] = tokens[token]
    template = one_template(_file_templates(file))
    digest = None
    if file.text("tokenizer.ggml.model") == "llama":
        vocabulary = _vocabulary(file, tokens)
        backend, digest = _sentencepiece(file, vocabulary, special), vocabulary.digest
    else:
        backend = _byte_level(file, tokens, special)
    return TokenizerParts(backend, template, special, file.end_tokens(), digest)


def _file_templates(file: GgufFile) -> dict[str, str]:
    """Return the templates of a file by name: one without a name, and those under keys that end in theirs."""
    key = "tokenizer.chat_template"
    named = {"default": file.text(key)} | {one: file.text(f"{key}.{one}") for one in ("tool_use", "rag")}
    return {name: text for name, text in named.items() if text}


def _vocabulary(file: GgufFile, tokens: list[str]) -> Vocabulary:
    scores, kinds = file.floats("tokenizer.ggml.scores"), file.integers("tokenizer.ggml.token_type")
    if not len(tokens) == len(scores) == len(kinds):
        raise ModelLoadError(
            f"{file.path}: {len(tokens)} tokens, {len(scores)} scores (tokenizer.ggml.scores) and {len(kinds)} kinds "
            "(tokenizer.ggml.token_type); needed: as many of each"
        )
    return Vocabulary(tokens, scores, kinds)


def _sentencepiece(file: GgufFile, vocabulary: Vocabulary, special: dict[str, str]) -> Backend:
    """Build a tokenizer of kind "llama"; a file that does not say otherwise has a BOS and a space before a text."""
    prefix = file.metadata.get("tokenizer.ggml.add_space_prefix") is not False
    backend = sentencepiece(vocabulary, special.get("unk_token"), space_prefix=prefix)
    if file.metadata.get("tokenizer.ggml.add_bos_token") is not False and "bos_token" in special:
        backend.post_processor = _bos_first(special["bos_token"], vocabulary.tokens.index(special["bos_token"]))
    return backend


def _bos_first(bos: str, token: int) -> TemplateProcessing:
    return TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", [(bos, token)])


def _byte_level(file: GgufFile, tokens: list[str], special: dict[str, str]) -> Backend:
    kind, split = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre", "default")
    known = (*GPT2_SPLIT, *DIGITS_SPLIT, *LLAMA3_SPLIT, *QWEN2_SPLIT)
    if kind != "gpt2" or split not in known:
        return _by_transformers(file, kind, split)
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = _merges(file, vocab)
    try:
        backend = Backend(BPE(vocab=vocab, merges=merges, ignore_merges=split in LLAMA3_SPLIT))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelLoadError(f"{file.path}: its vocabulary and merges do not fit: {error}") from error
    backend.pre_tokenizer = _pre_tokenizer(split)
    backend.decoder = decoders.ByteLevel()
    if split in QWEN2_SPLIT:
        backend.normalizer = normalizers.NFC()
    _add_tokens(backend, file, tokens)
    if file.metadata.get("tokenizer.ggml.add_bos_token") is True and "bos_token" in special:
        first = _bos_first(special["bos_token"], vocab[special["bos_token"]])
        backend.post_processor = SequenceProcessor([ByteLevel(trim_offsets=False), first])
    return backend


def _merges(file: GgufFile, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of tokens that become one; raises `ModelLoadError` for none, and for one of unknown tokens."""
    stated = file.strings("tokenizer.ggml.merges")
    if not stated:
        raise ModelLoadError(f"{file.path} has no merges (tokenizer.ggml.merges): texts would become single bytes")
    merges = [(a, b) for a, _, b in (merge.partition(" ") for merge in stated)]
    for a, b in merges:
        if not (a in vocab and b in vocab and a + b in vocab):
            raise ModelLoadError(f"{file.path}: the merge {f'{a} {b}'!r} joins or makes what is no token")
    return merges


def _pre_tokenizer(split: str) -> pre_tokenizers.PreTokenizer:
    if split in GPT2_SPLIT:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split in DIGITS_SPLIT:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    words = Regex(_WORDS % ("" if split in QWEN2_SPLIT else "{1,3}"))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(words, behavior="isolated"), plain])


def _add_tokens(backend: Backend, file: GgufFile, tokens: list[str]) -> None:
    kinds = file.integers("tokenizer.ggml.token_type")
    if len(kinds) not in (0, len(tokens)):
        raise ModelLoadError(f"{file.path}: tokenizer.ggml.token_type does not fit its {len(tokens)} tokens")
    pairs = list(zip(tokens, kinds, strict=False))
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, kind in pairs if kind == CONTROL])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t, kind in pairs if kind == USER_DEFINED])


def _by_transformers(file: GgufFile, kind: str, split: str) -> Backend:
    from transformers import AutoTokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    if kind == "gpt2" and split not in GGUF_PRE_TOKENIZER_SPLITS:
        raise ModelLoadError(f"{file.path}: its text is split by rule {split!r}, which is not known here")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(file.path.parent), gguf_file=file.path.name)
    except Exception as error:  # transformers has no common base class for these errors
        raise ModelLoadError(f"{file.path}: its tokenizer of kind {kind!r} cannot be built: {error}") from error
    backend = tokenizer.backend_tokenizer
    assert isinstance(backend, Backend)
    return backend
