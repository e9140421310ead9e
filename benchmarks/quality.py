"""What do quantised weights and 8-bit rows cost in quality? Each engine's logits against float32 on the same values.

Usage: python -m benchmarks.quality --text FILE [--engines NAME,...] [--chunks 40] [--model NAME]
       [--python llama.cpp=PYTHON,openvino=PYTHON] [--json OUT] [--record]

FILE holds JSON lines with `prompt`, gzipped or not; texts in random order, each with an end of sequence, are cut into
chunks of 512 tokens. All engines get the same ids. The reference is the readable forward in float32 on the dequantised
file. KL(reference || engine) and agreement of the likeliest token are over all positions, perplexity over those with a
next token. Intervals hold 95 % of 2,000 resamplings of chunks. `--record` keeps the figures of the native forward on
the file as it is in the package (engine/models/files/quality.json): `prolepsis profile` and `models show` tell them.
"""

import argparse
import gzip
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.quality_engines import NATIVE, Engine, Float32, Native, PeerEngine, open_engine
from benchmarks.script import options
from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.files import sha256_of
from prolepsis.engine.models.files.quality import MeasuredQuality, record_quality
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.native.processor import default_threads
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.lab.measure.provenance import commit, provenance

CHUNK = 512
RESAMPLINGS = 2000
REFERENCE = "float32"

Figure = tuple[float, float, float]
"""A mean and its 95 % interval."""


@dataclass(frozen=True, slots=True)
class ChunkFigures:
    """One engine on one chunk: means over its positions."""

    kl: float
    """KL(reference || engine), in nats."""
    agreement: float
    """Share of positions whose likeliest token is the reference's."""
    loss: float
    """Negative log-likelihood of the next token, in nats."""


@dataclass(frozen=True, slots=True)
class Quality:
    """One engine on all chunks."""

    kl: Figure
    agreement: Figure
    perplexity: float
    perplexity_ratio: Figure
    """To the reference's."""


def chunks_of(text: Path, tokenizer: ModelTokenizer, end: int, count: int, seed: int) -> list[list[int]]:
    """Return `count` chunks of `CHUNK` tokens of the texts in `text`."""
    opened = gzip.open if text.suffix == ".gz" else open
    with opened(text, "rt", encoding="utf-8") as lines:
        prompts = [json.loads(line)["prompt"] for line in lines]
    random.Random(seed).shuffle(prompts)
    ids: list[int] = []
    for prompt in prompts:
        ids += [*tokenizer.encode(prompt, add_special_tokens=False), end]
        if len(ids) >= count * CHUNK:
            return [ids[i * CHUNK : (i + 1) * CHUNK] for i in range(count)]
    raise SystemExit(f"{text} holds {len(ids)} tokens; {count} chunks take {count * CHUNK}")


def compare(expected: Tensor, found: Tensor, token_ids: Sequence[int]) -> ChunkFigures:
    """Compare log-probabilities [T, vocab] of the reference and of an engine."""
    following = torch.tensor(token_ids[1:])[:, None]
    return ChunkFigures(
        kl=float(F.kl_div(found, expected, reduction="sum", log_target=True)) / len(found),
        agreement=float((found.argmax(-1) == expected.argmax(-1)).float().mean()),
        loss=-float(found[:-1].gather(1, following).mean()),
    )


def summarise(figures: Sequence[ChunkFigures], reference: Sequence[ChunkFigures]) -> Quality:
    """Return means over chunks with intervals; the ratio of perplexities is taken within a resampling."""
    drawn = np.random.default_rng(0).integers(0, len(figures), (RESAMPLINGS, len(figures)))

    def figure(values: NDArray[np.float64], then: Callable[[float], float] = float) -> Figure:
        low, high = np.quantile(values[drawn].mean(1), (0.025, 0.975))
        return then(float(values.mean())), then(float(low)), then(float(high))

    loss, base = (np.array([one.loss for one in several]) for several in (figures, reference))
    return Quality(
        kl=figure(np.array([one.kl for one in figures])),
        agreement=figure(np.array([one.agreement for one in figures])),
        perplexity=math.exp(loss.mean()),
        perplexity_ratio=figure(loss - base, math.exp),
    )


def table(measured: dict[str, Quality]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| engine | KL to float32, 10^-3 nats | same likeliest token, % | perplexity | of float32's |",
        "|---|---|---|---|---|",
    ]
    for name, one in measured.items():
        kl = "{:.2f} ({:.2f}-{:.2f})".format(*(1000 * value for value in one.kl))
        agreement = "{:.1f} ({:.1f}-{:.1f})".format(*(100 * value for value in one.agreement))
        ratio = "{:.4f} ({:.4f}-{:.4f})".format(*one.perplexity_ratio)
        lines.append(f"| {name} | {kl} | {agreement} | {one.perplexity:.3f} | {ratio} |")
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Run all engines on all chunks, chunk by chunk, and return the report."""
    path = resolve(options.model)
    threads = default_threads()
    reference = Float32(path)
    end = reference.model.info.eos_token_ids[0]
    chunks = chunks_of(options.text, load_tokenizer(path), end, options.chunks, options.seed)
    pythons = {name: Path(python) for name, _, python in (pair.partition("=") for pair in _listed(options.python))}
    names = _listed(options.engines) or [*NATIVE]
    engines = {name: open_engine(name, path, pythons, max_tokens=CHUNK, threads=threads) for name in names}
    figures: dict[str, list[ChunkFigures]] = {name: [] for name in (REFERENCE, *engines)}
    for i, chunk in enumerate(chunks):
        expected = F.log_softmax(reference(chunk), dim=-1)
        figures[REFERENCE].append(compare(expected, expected, chunk))
        for name, engine in engines.items():
            figures[name].append(compare(expected, F.log_softmax(engine(chunk), dim=-1), chunk))
        print(f"chunk {i + 1} of {len(chunks)}", file=sys.stderr)
    measured = {name: summarise(several, figures[REFERENCE]) for name, several in figures.items()}
    print(table(measured))
    if options.record:
        record_quality(list(_records(path, options.text.name, engines, measured, len(chunks) * CHUNK)))
    versions = {
        f"{name} {package}": version
        for name, engine in engines.items()
        if isinstance(engine, PeerEngine)
        for package, version in engine.versions.items()
    }
    return {
        "provenance": provenance({"texts": options.seed}, versions),
        "model": path.name,
        "text": options.text.name,
        "positions": len(chunks) * CHUNK,
        "forwards": {name: engine.model.info.forward for name, engine in engines.items() if isinstance(engine, Native)},
        "quality": {name: asdict(one) for name, one in measured.items()},
        "chunks": {name: [asdict(one) for one in several] for name, several in figures.items()},
    }


def _records(
    path: Path, text: str, engines: Mapping[str, Engine], measured: Mapping[str, Quality], positions: int
) -> Iterator[MeasuredQuality]:
    """Yield the figures of engines that run the native forward on the file as it is."""
    for name, engine in engines.items():
        if isinstance(engine, Native) and NATIVE[name][0] == "auto":
            one = measured[name]
            yield MeasuredQuality(
                file=path.name,
                sha256=sha256_of(path),
                computation=engine.model.info.computation,
                kl=one.kl[0],
                agreement=one.agreement[0],
                perplexity=one.perplexity,
                float32_perplexity=measured[REFERENCE].perplexity,
                positions=positions,
                text=text,
                commit=commit(Path(__file__).parent),
            )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def main() -> None:
    args = options(__doc__, text=Path, engines="", model=DEFAULT_MODEL, chunks=40, seed=0, python="", record=False)
    if args.text is None:
        sys.exit("--text FILE is needed")
    report = measure(args)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
