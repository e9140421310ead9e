"""The tokenizer inside a GGUF file."""

from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.gguf_reader import GgufFile
from prolepsis.models.tokenizer import TokenizerParts

CONTROL, USER_DEFINED = 3, 4
GPT2_SPLIT = ("gpt-2", "gpt2")
DIGITS_SPLIT = ("smollm",)
LLAMA3_SPLIT = ("llama-bpe", "llama3", "llama-v3")
QWEN2_SPLIT = ("qwen2", "deepseek-r1-qwen")
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gguf_parts(path: Path) -> TokenizerParts:
    """Read the tokenizer of GGUF file `path`; raises `ModelLoadError` for a kind nobody here can build."""
    file = GgufFile(path)
    tokens = file.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelLoadError(f"{path} holds no vocabulary (tokenizer.ggml.tokens)")
    special = {}
    for name in ("bos", "eos", "unknown", "padding"):
        token = file.integer(f"tokenizer.ggml.{name}_token_id")
        if token is not None and 0 <= token < len(tokens):
            special[{"unknown": "unk_token", "padding": "pad_token"}.get(name, f"{name}_token")] = tokens[token]
    ends = [file.integer(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    template = file.text("tokenizer.chat_template") or None
    eos = tuple(dict.fromkeys(end for end in ends if end is not None))
    return TokenizerParts(_backend(file, tokens, special), template, special, eos)


def _backend(file: GgufFile, tokens: list[str], special: dict[str, str]) -> Backend:
    kind, split = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre", "default")
    known = (*GPT2_SPLIT, *DIGITS_SPLIT, *LLAMA3_SPLIT, *QWEN2_SPLIT)
    if kind != "gpt2" or split not in known:
        return _by_transformers(file, kind, split)
    merges = [(a, b) for a, _, b in (merge.partition(" ") for merge in file.strings("tokenizer.ggml.merges"))]
    vocab = {token: i for i, token in enumerate(tokens)}
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
        bos = special["bos_token"]
        template = TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", [(bos, vocab[bos])])
        backend.post_processor = Sequence([ByteLevel(trim_offsets=False), template])
    return backend


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
    kinds = file.metadata.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list) or len(kinds) not in (0, len(tokens)):
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
    except Exception as error:  # transformers has no common base for a tokenizer it cannot build
        raise ModelLoadError(f"{file.path}: its tokenizer of kind {kind!r} cannot be built: {error}") from error
    backend = tokenizer.backend_tokenizer
    assert isinstance(backend, Backend)
    return backend
