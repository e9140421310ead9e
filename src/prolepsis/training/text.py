"""Text that the target wrote, without hidden states: a file of JSON lines, and shards made of one by reading only.

A line has `prompt` and `answer`, both token ids; an end token behind the answer may be there or not. `kind` names what
the text is, `greedy` (true if it is missing) says how the answer was sampled. `number` is the document's; without it
the number follows from the tokens, so that answers to one prompt are held out together or not at all.
"""

import gzip
import json
import lzma
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.core.files import replacing
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.protocol import FeatureModel, KVCache, SequenceInput, pack
from prolepsis.training.data import HELD_OUT_EVERY, TrainingDocument, shards_of
from prolepsis.training.prompts import OWN
from prolepsis.training.synthesis import DataRequest, manifest_of, missing_numbers, write_shards

PASS_TOKENS = 1024
"""Most tokens of a pass."""


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A prompt and the target's answer, without the end token."""

    number: int
    kind: str
    greedy: bool
    prompt: list[int]
    answer: list[int]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer


def read_texts(file: Path, vocab: int, ends: Sequence[int]) -> list[WrittenText]:
    """Read a file of texts, .gz and .xz too; `ends` are the end tokens of a target with `vocab` tokens.

    Raises `ConfigError` that names the first invalid line.
    """
    texts: list[WrittenText] = []
    try:
        with _opened(file, "rt") as lines:
            texts.extend(_text(json.loads(line), vocab, ends) for line in lines)
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise ConfigError(f"text {file} cannot be read: {error}", param="text") from error
    except (ValueError, KeyError, TypeError) as error:
        wanted = "a JSON object with 'prompt' and 'answer' as token ids"
        raise ConfigError(f"{file}, line {len(texts) + 1}: not {wanted}: {error!r}", param="text") from error
    return texts


def numbered(ids: Sequence[int], side: int) -> int:
    """Return the number of a document of tokens `ids`; it is held out if `side` is a multiple of `HELD_OUT_EVERY`."""
    return HELD_OUT_EVERY * _hash(ids) + side % HELD_OUT_EVERY


def write_texts(file: Path, folder: Path) -> int:
    """Write the text of the shards in `folder` to `file` (.gz and .xz too) and return the number of documents."""
    documents = (shard.read(index) for shard in shards_of(folder) for index in range(len(shard)))
    return save_texts(file, map(_written, documents))


def save_texts(file: Path, texts: Iterable[WrittenText]) -> int:
    """Write `texts` to `file`, as `read_texts` reads them, and return their number."""
    count = 0
    with replacing(file) as part, _opened(part, "wt", file.suffix) as out:
        for text in texts:
            out.write(json.dumps(asdict(text)) + "\n")
            count += 1
    return count


def record(
    config: EngineConfig,
    request: DataRequest,
    file: Path,
    progress: Callable[[int], None],
    *,
    most: int = PASS_TOKENS,
    before_pass: Callable[[], None] = lambda: None,
) -> None:
    """Write shards of the texts in `file` until the folder holds `request.tokens`; nothing is generated.

    `progress` receives the tokens in the folder, and `before_pass` is called before each pass of at most `most` tokens.
    Texts that the folder has are left out. Raises `ConfigError` for a file that cannot be read or has a text longer
    than the model reads.
    """
    loaded = load_model(config)
    model = loaded.model
    if not isinstance(model, FeatureModel):
        raise ModelLoadError(f"the forward {model.info.forward} has no hidden states; allowed: native, lean")
    texts, positions = read_texts(file, model.info.vocab_size, model.info.eos_token_ids), model.info.max_positions
    if (longest := max((len(text.tokens) for text in texts), default=0)) > positions:
        raise ConfigError(
            f"{file} has a text of {longest} tokens; allowed for {model.info.name}: {positions}", param="text"
        )
    by_number: dict[int, WrittenText] = {}
    for text in texts:  # of joined files, several may have one number
        if by_number.setdefault(text.number, text).tokens != text.tokens:
            other = replace(text, number=numbered(text.tokens, text.number))
            by_number[other.number] = other
    missing = missing_numbers(request.folder, by_number)
    documents = recorded(model, request.aux_layers, [by_number[number] for number in missing], most, before_pass)
    write_shards(request, manifest_of(loaded, request), documents, progress)


def recorded(
    model: FeatureModel,
    aux_layers: Sequence[int],
    texts: Sequence[WrittenText],
    most: int = PASS_TOKENS,
    before_pass: Callable[[], None] = lambda: None,
) -> Iterator[TrainingDocument]:
    """Yield the texts with their hidden states, computed by passes of `most` tokens, several texts at once."""
    groups = list(_groups(texts, most))
    cache = model.make_cache(max((_pages(group)[-1][-1] + 1 for group in groups), default=1))
    for group in groups:
        for text, features in zip(
            group, _features(model, cache, aux_layers, group, most, before_pass=before_pass), strict=True
        ):
            tokens = torch.tensor(text.tokens, dtype=torch.int32)
            yield TrainingDocument(text.number, text.kind, text.greedy, tokens, len(text.prompt), features)


def _features(
    model: FeatureModel,
    cache: KVCache,
    aux_layers: Sequence[int],
    texts: Sequence[WrittenText],
    most: int,
    *,
    before_pass: Callable[[], None],
) -> list[Tensor]:
    """Return the hidden states of `texts`; a text longer than a pass is read in parts."""
    pages = _pages(texts)
    parts: list[list[Tensor]] = [[] for _ in texts]
    for start in range(0, max(len(text.tokens) for text in texts), most):
        before_pass()
        inputs = [
            SequenceInput(text.tokens[start : start + most], start, own, keep_last=0)
            for text, own in zip(texts, pages, strict=True)
        ]
        _, features = model.forward_features(pack(inputs), cache, aux_layers)
        lengths = [len(sequence.token_ids) for sequence in inputs]
        for part, rows in zip(parts, torch.split_with_sizes(features.cpu(), lengths), strict=True):
            part.append(rows)
    return [torch.cat(part) for part in parts]  # copies: a view would keep the features of the whole pass


def _pages(texts: Sequence[WrittenText]) -> list[list[int]]:
    """Return the pages of each text, all different."""
    ends = list(accumulate(-(-len(text.tokens) // PAGE_SIZE) for text in texts))
    return [list(range(first, end)) for first, end in pairwise([0, *ends])]


def _groups(texts: Sequence[WrittenText], most: int) -> Iterator[list[WrittenText]]:
    """Yield texts that fit a pass together; a longer one comes alone."""
    group: list[WrittenText] = []
    for text in texts:
        if group and sum(len(member.tokens) for member in [*group, text]) > most:
            yield group
            group = []
        group.append(text)
    if group:
        yield group


def _text(line: dict[str, Any], vocab: int, ends: Sequence[int]) -> WrittenText:
    prompt, answer = _ids(line["prompt"], vocab), _ids(line["answer"], vocab)
    if answer[-1] in ends:
        answer = answer[:-1]
    number = line.get("number")
    if number is None:
        number = numbered(prompt + answer, _hash(prompt))
    return WrittenText(int(number), str(line.get("kind", OWN)), bool(line.get("greedy", True)), prompt, answer)


def _written(document: TrainingDocument) -> WrittenText:
    prompt, ids, start = document.earlier.tolist(), document.tokens.tolist(), document.response_start
    return WrittenText(document.number, document.kind, document.greedy, prompt + ids[:start], ids[start:])


def _ids(ids: Any, vocab: int) -> list[int]:
    if not isinstance(ids, list) or not ids:
        raise TypeError("an empty text, or no list")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab:
            raise ValueError(f"{token!r} is no token of the target, which has {vocab}")
    return ids


def _hash(tokens: Sequence[int]) -> int:
    return int.from_bytes(blake2b(array("i", tokens).tobytes(), digest_size=6).digest())


def _opened(file: Path, mode: str, suffix: str | None = None) -> IO[str]:
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(suffix or file.suffix, open)
    opened: IO[str] = opener(file, mode, encoding="utf-8")
    return opened
