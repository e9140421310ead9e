"""The tokenizer of a GGUF file, built from its vocabulary, merges and rules.

Source of the kinds and of what a file means that does not say: llama.cpp (`src/llama-vocab.cpp`).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.processors import ByteLevel, TemplateProcessing
from tokenizers.processors import Sequence as SequenceProcessor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.gguf_file import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, GgufFile
from prolepsis.engine.models.files.text_splits import SPLITS, TextSplit
from prolepsis.engine.text.chat_template import one_template
from prolepsis.engine.text.model_tokenizer import TokenizerParts
from prolepsis.engine.text.token_bytes import SPACE


@dataclass(frozen=True, slots=True)
class SentencePieceVocabulary:
    """Tokens by id, with their scores and kinds; spaces are written as `SPACE` except in user-defined tokens."""

    tokens: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]

    @property
    def digest(self) -> str:
        return sha256(json.dumps([self.tokens, self.scores, self.kinds]).encode()).hexdigest()


def sentencepiece(vocabulary: SentencePieceVocabulary, unknown: str | None, *, space_prefix: bool) -> Backend:
    """Return the tokenizer of `vocabulary`, without the tokens around a text.

    SentencePiece (arXiv 1808.06226) merges the neighbours whose union is the token with the highest score. Merges by
    rank do the same: one for each way to cut a token into two others, in the order of the scores. Text that no token
    covers is spelled in bytes.

    `space_prefix`: a space is put before a text, and before what follows a control token. Control tokens in a text are
    found as such, user-defined ones (runs of spaces, tags) are taken whole, the longest first.
    """
    tokens, kinds = vocabulary.tokens, vocabulary.kinds
    ids = {token: i for i, token in enumerate(tokens)}
    model = BPE(
        vocab=ids, merges=merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in set(kinds)
    )
    backend = Backend(model)
    spaces = normalizers.Replace(" ", SPACE)
    texts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        texts.append(decoders.Strip(" ", left=1))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(texts)
    of_kind = {kind: [token for token, k in zip(tokens, kinds, strict=True) if k == kind] for kind in set(kinds)}
    control = [*of_kind.get(UNKNOWN, ()), *of_kind.get(CONTROL, ())]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    own = of_kind.get(USER_DEFINED, ())
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])
    return backend


def merges(vocabulary: SentencePieceVocabulary) -> list[tuple[str, str]]:
    """Return the pairs of tokens whose union is a token, the union with the highest score first.

    Of the pairs of one token the one with the longest left part comes first: that is where a run of equal characters
    is cut when it is merged from the left.
    """
    rows = zip(vocabulary.tokens, vocabulary.scores, vocabulary.kinds, strict=True)
    scored = {token: score for token, score, kind in rows if kind == NORMAL}
    return [
        (token[:cut], token[cut:])
        for token in sorted(scored, key=scored.__getitem__, reverse=True)
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in scored and token[cut:] in scored
    ]


SENTENCEPIECE, BYTE_PAIRS, GEMMA4 = "llama", "gpt2", "gemma4"
KINDS = (SENTENCEPIECE, BYTE_PAIRS, GEMMA4)  # values of `tokenizer.ggml.model` that are read
_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_OF_SENTENCEPIECE = {"unknown": 0, "bos": 1, "eos": 2}  # ids in files of this kind that do not state them
_NEEDED = ("bos", "eos", "eot", "eom")
"""Tokens that are written or looked for: a file whose id of one is no token is refused. Others are left out then."""


@dataclass(frozen=True, slots=True)
class _Words:
    """The vocabulary of a file."""

    file: GgufFile
    tokens: list[str]
    kinds: list[int]  # as many as tokens, or none where the file has none
    special: Mapping[str, str]

    def of_kind(self, kind: int) -> list[str]:
        return [token for token, one in zip(self.tokens, self.kinds, strict=False) if one == kind]

    def states(self, name: str, *, default: bool) -> bool:
        """Return whether the file says `tokenizer.ggml.NAME`."""
        return bool(self.file.metadata.get(f"tokenizer.ggml.{name}", default))


def gguf_parts(file: GgufFile) -> TokenizerParts:
    """Read the tokenizer of a GGUF file; raises `ModelLoadError` for a kind that cannot be built."""
    kind = file.text("tokenizer.ggml.model")
    if kind not in KINDS:
        raise ModelLoadError(f"{file.path}: its tokenizer is of kind {kind!r}; read are: {', '.join(KINDS)}")
    words = _words(file, kind)
    digest = None
    if kind == SENTENCEPIECE:  # which has a BOS and a space before a text unless the file says otherwise
        tokens, scores = words.tokens, file.floats("tokenizer.ggml.scores")
        if not len(tokens) == len(scores) == len(words.kinds):
            raise ModelLoadError(
                f"{file.path}: {len(tokens)} tokens, {len(scores)} scores (tokenizer.ggml.scores) and "
                f"{len(words.kinds)} kinds (tokenizer.ggml.token_type); needed: as many of each"
            )
        vocabulary = SentencePieceVocabulary(tokens, scores, words.kinds)
        prefix = words.states("add_space_prefix", default=True)
        backend, digest = (
            sentencepiece(vocabulary, words.special.get("unk_token"), space_prefix=prefix),
            vocabulary.digest,
        )
        if around := _around(words, has_bos=words.states("add_bos_token", default=True)):
            backend.post_processor = around
    else:
        backend = _byte_pairs(words, GEMMA4 if kind == GEMMA4 else file.text("tokenizer.ggml.pre", "default"))
    key = "tokenizer.chat_template"
    templates = {"default": file.text(key)} | {name: file.text(f"{key}.{name}") for name in ("tool_use", "rag")}
    return TokenizerParts(
        backend,
        one_template({name: text for name, text in templates.items() if text}),
        words.special,
        file.end_tokens(),
        digest,
        fill_marks=file.fill_marks(),
    )


def _words(file: GgufFile, kind: str) -> _Words:
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(file.strings("tokenizer.ggml.tokens"))]
    if not tokens:
        raise ModelLoadError(f"{file.path} holds no vocabulary (tokenizer.ggml.tokens)")
    if len(set(tokens)) < len(tokens):
        [(twice, _)] = Counter(tokens).most_common(1)
        raise ModelLoadError(f"{file.path} has the token {twice!r} twice (tokenizer.ggml.tokens)")
    kinds = file.integers("tokenizer.ggml.token_type")
    if len(kinds) not in (0, len(tokens)):
        raise ModelLoadError(
            f"{file.path}: tokenizer.ggml.token_type has {len(kinds)} entries for {len(tokens)} tokens"
        )
    for name in _NEEDED:
        token = file.token(name)
        if token is not None and token >= len(tokens):
            raise ModelLoadError(f"{file.path}: tokenizer.ggml.{name}_token_id is {token}; it has {len(tokens)} tokens")
    defaults = _OF_SENTENCEPIECE if kind == SENTENCEPIECE else {}
    ids = {name: defaults.get(name) if (id_ := file.token(name)) is None else id_ for name in _SPECIAL}
    special = {_SPECIAL[name]: tokens[i] for name, i in ids.items() if i is not None and i < len(tokens)}
    return _Words(file, tokens, kinds, special)


def _around(words: _Words, *, has_bos: bool) -> TemplateProcessing | None:
    """Return what puts BOS before a text, and EOS behind it where the file says so."""
    bos = words.special.get("bos_token") if has_bos else None
    eos = words.special.get("eos_token") if words.states("add_eos_token", default=False) else None
    named = [token for token in (bos, eos) if token is not None]
    if not named:
        return None
    one, two = ([part for part in (bos, text, eos) if part] for text in ("$A", "$B"))
    return TemplateProcessing(one, [*one, *two], [(token, words.tokens.index(token)) for token in dict.fromkeys(named)])


def _byte_pairs(words: _Words, name: str) -> Backend:
    """Build a tokenizer of byte pairs whose texts are split by the rules `name`."""
    path = words.file.path
    if name not in SPLITS:
        raise ModelLoadError(
            f"{path}: its text is split by rule {name!r} (tokenizer.ggml.pre), which is not known here"
        )
    split, vocab = SPLITS[name], {token: i for i, token in enumerate(words.tokens)}
    fallback = (
        {}
        if split.is_spelled_in_bytes
        else {"unk_token": words.special.get("unk_token"), "fuse_unk": True, "byte_fallback": BYTE in set(words.kinds)}
    )
    stated = words.file.strings("tokenizer.ggml.merges")
    if not stated:
        raise ModelLoadError(f"{path} has no merges (tokenizer.ggml.merges): texts would become single bytes")
    pairs = [(a, b) for a, _, b in (merge.partition(" ") for merge in stated)]
    if unknown := next((f"{a} {b}" for a, b in pairs if not {a, b, a + b} <= vocab.keys()), ""):
        raise ModelLoadError(f"{path}: the merge {unknown!r} joins or makes what is no token")
    try:
        backend = Backend(BPE(vocab=vocab, merges=pairs, ignore_merges=split.takes_words, **fallback))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelLoadError(f"{path}: its vocabulary and merges do not fit: {error}") from error
    _spell(backend, split)
    control, own = words.of_kind(CONTROL), words.of_kind(USER_DEFINED)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])
    has_bos = name == GEMMA4 or words.states("add_bos_token", default=split.has_bos)  # early files of Gemma 4 deny it
    if around := _around(words, has_bos=has_bos):
        bytes_first = split.is_spelled_in_bytes
        backend.post_processor = SequenceProcessor([ByteLevel(trim_offsets=False), around]) if bytes_first else around
    return backend


def _spell(backend: Backend, split: TextSplit) -> None:
    """Let texts be split by these rules, spelled as the vocabulary is, and spelled back."""
    parts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(rule), behavior="isolated") for rule in split.rules
    ]
    if split.is_spelled_in_bytes:
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        backend.decoder = decoders.ByteLevel()
    else:
        backend.normalizer = normalizers.Replace(" ", SPACE)
        texts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        backend.decoder = decoders.Sequence(texts)
    if split.is_composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
