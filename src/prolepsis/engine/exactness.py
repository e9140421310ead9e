"""Decides at start whether speculation equals plain decoding to the bit with the loaded model (strict, else normal).

Strict is what a forward promises by its construction and what the self-check does not refute. The check alone tests
some of all row counts and contexts, and a library may take another kernel at any of the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError, NotFinite
from prolepsis.core.files import read_cached, write_cached
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.phases import phase
from prolepsis.engine.models.protocol import KVCache, SequenceInput, TargetModel, pack
from prolepsis.engine.native.processor import machine_file

CONTEXTS = (1, PAGE_SIZE - 3, 3 * PAGE_SIZE + 5, 8 * PAGE_SIZE)
"""A model with fewer positions is checked at the longest context that it has."""
BRIEF_CONTEXTS = CONTEXTS[1:3]
"""Of a model that takes long to check, where the forward's construction promises what is checked."""
ROW_COUNTS = (2, 3, 8, 16, 32)
SEED = 20_011
SMALL = 64 << 20
"""A model of so few bytes of weights is checked on `NUM_TEXTS` texts: differences of few sums are rare."""
NUM_TEXTS = 8
_COMPARISONS = len(ROW_COUNTS) + 3  # of a text at a context
BUDGET_S = 30.0
"""Of a self-check. What it does not reach by then is promised by the forward alone, and the reason says so."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Exactness:
    """The mode in effect and the evidence for it."""

    mode: Literal["strict", "normal"]
    reason: str


@dataclass(frozen=True, slots=True)
class _Text:
    """Random tokens and the pages that hold their KV."""

    tokens: list[int]
    pages: list[int]


def passed_file(fingerprint: str, threads: int, build: str) -> Path:
    """Return the file that says that a model passed the self-check here with this build of its forward."""
    return machine_file("self-checks", fingerprint, threads, build)


def decide(
    model: TargetModel,
    setting: Literal["auto", "on", "off"],
    passed: Path | None = None,
    *,
    fresh: bool = False,
    budget_s: float = BUDGET_S,
) -> Exactness:
    """Return the mode for `model`; a check that was passed, or ended, is kept in `passed` and repeated only if `fresh`.

    Where nothing is promised no check makes a forward strict: one pass is looked at, unless `fresh` asks for all.
    Raises `ModelLoadError` if strict is required and the model is not.
    """
    if setting == "off":
        return Exactness("normal", "set in the configuration")
    rows, contexts = ", ".join(map(str, ROW_COUNTS)), ", ".join(map(str, _tested_contexts(model)))
    checks = f"self-check: bitwise the same logits for 1 row and {rows} at contexts {contexts}"
    fault, promise = None, model.info.invariant_by
    kept = None if fresh or passed is None else read_cached(passed)
    if not promise and not fresh:
        fault, checks = _not_finite(model), "no self-check was run, as none could promise them"
    elif kept is not None and f"{kept}; ".startswith(f"{checks}; "):
        checks = kept
    else:
        fault, left_out = _check(model, budget_s)
        checks = f"{checks}; {left_out}" if left_out else checks
        if fault is None and passed is not None:
            write_cached(passed, checks)
    if fault is None and promise:
        return Exactness("strict", f"{promise}; {checks}")
    reason = fault or f"nothing promises the same bits for all rows and contexts of {model.info.forward}"
    if setting == "on":
        raise ModelLoadError(f"strict is 'on', but {reason}; allowed here: auto, off")
    return Exactness("normal", f"self-check: {fault}" if fault else f"{reason}; {checks}")


def _not_finite(model: TargetModel) -> str | None:
    """Return what is wrong with the logits of one short pass, or None."""
    try:
        _run(model, model.make_cache(1), SequenceInput([0], 0, [0]))
    except NotFinite as error:
        log.warning("logits_not_finite", model=model.info.name)
        return str(error)
    return None


@torch.no_grad()
def _check(model: TargetModel, budget_s: float) -> tuple[str | None, str]:
    """Return where a row's logits depend on the rest of the pass, or are no numbers; and what `budget_s` left out.

    Compares decoding token by token with chunks of `ROW_COUNTS` rows, with a neighbour in the batch, with the branches
    of a tree and with a cache filled by other chunks, on random tokens at `CONTEXTS`.
    """
    contexts = _tested_contexts(model)
    if not contexts:
        least = min(CONTEXTS) + max(ROW_COUNTS)
        return f"a context of {model.info.max_positions} tokens is too short for the check, which needs {least}", ""
    longest = max(contexts) + max(ROW_COUNTS)
    num_pages = -(-longest // PAGE_SIZE) + 1
    cache, generator = model.make_cache(2 * num_pages), torch.Generator().manual_seed(SEED)
    num_texts = NUM_TEXTS if model.info.weight_bytes < SMALL else 1
    with phase("checking exactness", num_texts * len(contexts) * _COMPARISONS) as checking:
        try:
            for _ in range(num_texts):
                tokens = torch.randint(model.info.vocab_size, (longest,), generator=generator).tolist()
                text = _Text(tokens, list(range(num_pages)))
                for context in contexts:
                    for place, same in _comparisons(model, cache, text, context, list(range(num_pages, 2 * num_pages))):
                        if not same:
                            return f"logits differ {place} at context {context}", ""
                        checking.done += 1
                        if checking.seconds > budget_s and checking.total and checking.done < checking.total:
                            reached = f"{checking.done} of {checking.total} comparisons in {budget_s:g} s"
                            return None, f"it was ended after {reached}, {place} at context {context}"
        except NotFinite as error:
            log.warning("logits_not_finite", model=model.info.name)
            return str(error), ""
    return None, ""


def _tested_contexts(model: TargetModel) -> list[int]:
    info = model.info
    longest = info.max_positions - max(ROW_COUNTS)
    contexts = BRIEF_CONTEXTS if info.invariant_by and info.weight_bytes >= SMALL else CONTEXTS
    return sorted({min(context, longest) for context in contexts}) if longest > 0 else []


def _comparisons(
    model: TargetModel, cache: KVCache, text: _Text, context: int, spare: list[int]
) -> Iterator[tuple[str, bool]]:
    _run(model, cache, SequenceInput(text.tokens[:context], 0, text.pages))
    rows = text.tokens[context : context + max(ROW_COUNTS)]
    alone = torch.cat([_run(model, cache, _part([row], context + i, text)) for i, row in enumerate(rows)])
    for count in ROW_COUNTS:
        together = _run(model, cache, _part(rows[:count], context, text))
        yield f"between 1 row and {count}", torch.equal(together, alone[:count])
    neighbour = SequenceInput(text.tokens[: context + 7], 0, spare)
    both = _run(model, cache, neighbour, _part(rows[:4], context, text))
    yield "next to another sequence", torch.equal(both[1:], alone[:4])
    # the rows are the even nodes, each followed by a wrong and principal child
    nodes = [token for right in rows[:8] for token in (right, text.tokens[0])][:-1]
    parents = [i - 2 if i % 2 == 0 and i else i - 1 for i in range(len(nodes))]
    tree = _run(model, cache, SequenceInput(nodes, context, text.pages, parents, keep_last=len(nodes)))
    yield "on a branch of a tree", torch.equal(tree[::2], alone[:8])
    first = context // 2
    if first:
        _run(model, cache, SequenceInput(text.tokens[:first], 0, spare))
    _run(model, cache, SequenceInput(text.tokens[first:context], first, spare))
    again = _run(model, cache, SequenceInput(rows[:2], context, spare, keep_last=2))
    yield "after a prefill in other chunks", torch.equal(again, alone[:2])


def _part(tokens: list[int], cached: int, text: _Text) -> SequenceInput:
    return SequenceInput(tokens, cached, text.pages, keep_last=len(tokens))


def _run(model: TargetModel, cache: KVCache, *sequences: SequenceInput) -> Tensor:
    logits = model.forward(pack(list(sequences)), cache)
    if not bool((logits < torch.inf).all()):
        raise NotFinite(f"logits are not finite at context {sequences[-1].cached}")
    return logits
