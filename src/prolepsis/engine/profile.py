"""Measures what a pass of the loaded model costs on this machine, and keeps the curve for the next start."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import structlog
import torch

from prolepsis.core.files import read_cached, write_cached
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.phases import phase
from prolepsis.engine.drafting.cost import PROFILE_CONTEXTS, PROFILE_TOKENS, CostCurve, profile_cost
from prolepsis.engine.models.protocol import SequenceInput, TargetModel, pack
from prolepsis.engine.native.processor import machine_file

log = structlog.get_logger(__name__)

SEQUENCE = 512  # cached tokens of a sequence in passes that are timed at more
_TOO_LONG_MS = 5000.0  # for a pass that is no part of the curve
_DISTURBED = 1.25  # times what a pass takes now: other work added to what was measured
_LOOKS = 3
_LONG_MS = 100.0
"""Passes longer than this are looked at once, cold: less disturbs them, and they hold up the start."""


def curve_file(fingerprint: str, threads: int, build: str) -> Path:
    """Return the file with the cost curve of a model on this machine with this build of its forward."""
    return machine_file("profiles", fingerprint, threads, build, str(SEQUENCE), "different tokens")


def cost_curve(model: TargetModel, file: Path, *, fresh: bool = False) -> CostCurve:
    """Return the curve kept in `file`, else (or with `fresh`) measure it and keep it there.

    One whose passes take much longer than now was measured on a busy machine, and is measured again.
    """
    text, kept = None if fresh else read_cached(file), None
    try:
        kept = CostCurve.from_json(text) if text is not None else None
    except ValueError as error:
        log.warning("profile_unreadable", file=str(file), error=str(error))
    if kept is not None:
        with phase("comparing passes with those measured before"):
            is_disturbed = _is_disturbed(kept, model)
        if not is_disturbed:
            return kept
    curve = measure(model)
    write_cached(file, curve.to_json())
    return curve


def measure(model: TargetModel, repeats: int = 3, counts: Sequence[int] = PROFILE_TOKENS) -> CostCurve:
    """Time passes of `counts` tokens at `PROFILE_CONTEXTS` tokens of context, in milliseconds.

    A token reads the context of its own sequence only, so a pass of a long context is one of many sequences.
    """
    longest = model.info.max_positions - max(counts)
    contexts = sorted({max(1, min(context, longest)) for context in PROFILE_CONTEXTS})
    tokens = [count for count in counts if count + contexts[-1] <= model.info.max_positions]
    points = [(count, context) for count in tokens for context in contexts]
    with phase("measuring passes", len(points) * (1 + repeats)) as measuring:
        milliseconds = _timer(model, points)

        def counted(count: int, context: int) -> float:
            measuring.done += 1
            return milliseconds(count, context)

        return profile_cost(counted, tokens, contexts, repeats)


def long_passes(model: TargetModel, curve: CostCurve) -> dict[int, float]:
    """Return milliseconds of passes of 256 and 512 tokens at the least context, without those that take too long."""
    context, most = curve.contexts[0], model.info.max_positions
    tokens = [n for n in (256, 512) if n + context <= most and curve.ms(n, context) <= _TOO_LONG_MS]
    milliseconds = _timer(model, [(n, context) for n in tokens])
    return {n: min(milliseconds(n, context) for _ in range(2)) for n in tokens}  # the first call is cold


def _is_disturbed(kept: CostCurve, model: TargetModel) -> bool:
    """Return whether a pass of the fewest or of the most tokens takes much less than was measured."""
    points = {(kept.tokens[end], kept.contexts[0]): kept.profiled[end][0] for end in (0, -1)}
    milliseconds = _timer(model, list(points))
    looks = {point: 1 if ms > _LONG_MS else 1 + _LOOKS for point, ms in points.items()}  # the first one is cold
    return any(ms > _DISTURBED * min(milliseconds(*at) for _ in range(looks[at])) for at, ms in points.items())


def _timer(model: TargetModel, points: Sequence[tuple[int, int]]) -> Callable[[int, int], float]:
    passes = {point: pack(_sequences(*point, model.info.vocab_size)) for point in points}
    cache = model.make_cache(1 + max((int(batch.pages.max()) for batch in passes.values()), default=0))

    @torch.no_grad()
    def milliseconds(count: int, context: int) -> float:
        start = time.perf_counter()
        model.forward(passes[count, context], cache)
        return 1000.0 * (time.perf_counter() - start)

    return milliseconds


def _sequences(tokens: int, context: int, vocab_size: int) -> list[SequenceInput]:
    """Return sequences of about `SEQUENCE` cached tokens, `context` in all, which share `tokens` new ones.

    The new ones are spread over the vocabulary: equal ones would take the same experts of a mixture.
    """
    number = max(1, min(tokens, context // SEQUENCE))
    cached = context // number
    edges = [tokens * i // number for i in range(number + 1)]
    counts = [end - begin for begin, end in pairwise(edges)]
    new = [1 + i * (vocab_size - 1) // tokens for i in range(tokens)]
    pages = -(-(cached + max(counts)) // PAGE_SIZE)
    return [
        SequenceInput(new[begin:end], cached, list(range(i * pages, (i + 1) * pages)), keep_last=end - begin)
        for i, (begin, end) in enumerate(pairwise(edges))
    ]
