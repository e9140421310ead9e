"""Measures the parts of an engine's steps while it serves, and fits a `Machine` to them."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from prolepsis.core.figures import Figure, StepDone
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed, PassRunner
from prolepsis.engine.step import Engine
from prolepsis.lab.virtual_engine.machine import (
    BANDS,
    Machine,
    PassWork,
    ProposerCost,
    RehearsedSettings,
    band_of,
    work_of,
)

Array = NDArray[np.float64]
_QUANTILES = 41
_FEWEST = 20
"""Passes of a band, below which its scatter is that of all passes."""


@dataclass(slots=True)
class StepSample:
    """One step as it was measured; times in milliseconds."""

    work: PassWork
    pass_ms: float = 0.0
    total_ms: float = 0.0
    propose_ms: float = 0.0  # in calls that ask proposers for drafts

    @property
    def host_ms(self) -> float:
        """Outside the pass and the proposers' calls."""
        return self.total_ms - self.pass_ms - self.propose_ms


@dataclass(slots=True)
class MeasuredSteps:
    """The steps of some time, and the calls of proposers in them: sequences, levels, milliseconds."""

    steps: list[StepSample] = field(default_factory=list)
    calls: dict[str, list[tuple[int, int, float]]] = field(default_factory=dict)

    def with_others(self, others: "MeasuredSteps") -> "MeasuredSteps":
        names = self.calls.keys() | others.calls.keys()
        calls = {name: [*self.calls.get(name, ()), *others.calls.get(name, ())] for name in names}
        return MeasuredSteps([*self.steps, *others.steps], calls)


class StepMeter:
    """Watches an engine from the moment it is built: a `PassRunner` around its own, and an `EngineObserver`.

    Steps that read nothing or fail are left out.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._inner: PassRunner | None = None
        self._running: StepSample | None = None
        self._measured = MeasuredSteps()
        self._ended = 0.0

    def watch(self, engine: Engine) -> None:
        """Measure the steps of an engine that was built with this meter as its observer."""
        self._engine, self._inner = engine, engine.runner
        engine.runner = self
        engine.speculation.proposers.records.calls = []

    def taken(self) -> MeasuredSteps:
        """Return what was measured since the last call."""
        measured, self._measured = self._measured, MeasuredSteps()
        return measured

    def forward(self, rows: Sequence[Row], aux_layers: tuple[int, ...] = ()) -> Computed:
        assert self._inner is not None, "an engine is watched"
        assert self._engine is not None, "an engine is watched"
        self._running = StepSample(work_of(rows, aux_layers, self._engine.clock() - self._ended))
        return self._inner.forward(rows, aux_layers)

    def compact(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        assert self._inner is not None, "an engine is watched"
        self._inner.compact(rows, sampled)

    def observe(self, figure: Figure) -> None:
        """Take in what a step took."""
        if not isinstance(figure, StepDone) or self._running is None or self._engine is None:
            return
        sample, self._running, self._ended = self._running, None, self._engine.clock()
        sample.pass_ms = 1000.0 * figure.seconds["forward"]
        sample.total_ms = 1000.0 * sum(figure.seconds.values())
        calls = self._engine.speculation.proposers.records.calls or []
        for call in calls:
            sample.propose_ms += 1000.0 * call.seconds
            known = self._measured.calls.setdefault(call.proposer, [])
            known.append((call.num_sequences, call.depth, 1000.0 * call.seconds))
        calls.clear()
        self._measured.steps.append(sample)

    def machine(self, passes: CostCurve, measured: MeasuredSteps) -> Machine:
        """Return what was measured as a machine; `passes`, measured one by one, stand for those that were rare."""
        assert self._engine is not None, "an engine is watched"
        drafters = self._engine.speculation.proposers
        bare = Machine(
            passes=passes,
            expected=drafters.cost,
            engine=self._settings(self._engine),
            proposers={
                each.name: ProposerCost(free=each.free, one_pass=each.one_pass, takes_states=each.takes_states)
                for each in drafters.contained
            },
        )
        return fitted_machine(bare, passes, measured)

    @staticmethod
    def _settings(engine: Engine) -> RehearsedSettings:
        limits, pool = engine.scheduler.limits, engine.scheduler.pool
        return RehearsedSettings(
            max_requests=limits.max_sequences,
            max_step_tokens=limits.max_step_tokens,
            max_model_len=limits.max_model_len,
            num_pages=pool.num_pages,
            num_speculative_tokens=engine.plan.current.num_speculative_tokens,
            chunk_limit_ms=engine.scheduler.chunks.limit_ms,
            shadow_cost=engine.speculation.shadow_budget.share,
            prefix_cache=pool.prefix_cache,
        )


def fitted_machine(bare: Machine, passes: CostCurve, measured: MeasuredSteps) -> Machine:
    """Return a machine whose steps take what the measured ones did on average; its settings are those of `bare`."""
    works = [sample.work for sample in measured.steps]
    bare = replace(
        bare,
        measured_tokens=max([passes.tokens[-1], *(work.num_tokens for work in works)]),
        measured_sequences=max([1, *(work.num_sequences for work in works)]),
    )
    machine = _with_passes(bare, passes, measured.steps)
    machine = replace(machine, scatter=_scatter(machine, measured.steps))
    called = {name: _with_calls(cost, measured.calls.get(name, [])) for name, cost in bare.proposers.items()}
    return _with_host(replace(machine, proposers=called), measured.steps)


def _with_passes(bare: Machine, passes: CostCurve, steps: Sequence[StepSample]) -> Machine:
    """Return the machine with what passes take.

    Between knots of tokens a pass takes linearly more; each cached and each predicted token, and a pause before it,
    adds to it. The points of `passes` count as one step each: they decide where there are no steps. The last
    knot is twice the largest pass, and extrapolated.
    """
    points = [
        (PassWork(tokens, context, 1, tokens, 0, 0), passes.profiled[i][j])
        for i, tokens in enumerate(passes.tokens)
        for j, context in enumerate(passes.contexts)
    ]
    seen = [*points, *((sample.work, sample.pass_ms) for sample in steps)]
    knots = (*_KNOTS[: bisect_left(_KNOTS, bare.measured_tokens)], bare.measured_tokens)
    rows = [_pass_row(work, knots) for work, _ in seen]
    *increments, context_ms, logits_ms, first_ms = _fitted(rows, [ms for _, ms in seen])
    far = 65536
    curve = [(ms, ms + far * context_ms) for ms in accumulate([max(1e-6, increments[0]), *increments[1:]])]
    known, beyond = CostCurve(knots, (0, far), curve), 2 * knots[-1]
    curve.append((known.ms(beyond, 0), known.ms(beyond, far)))
    return replace(bare, passes=CostCurve((*knots, beyond), (0, far), curve), logits_ms=logits_ms, first_ms=first_ms)


_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, *(1 << power for power in range(8, 16)))
"""Tokens."""


def _pass_row(work: PassWork, knots: Sequence[int]) -> list[float]:
    """Return what each coefficient of `_with_passes` is multiplied with: increments up to each knot, and the rest."""
    increments = [1.0]
    for before, knot in pairwise(knots):
        increments.append(min(1.0, max(0.0, (work.num_tokens - before) / (knot - before))))
    return [*increments, work.num_context, work.num_logits, float(work.is_first)]


def _with_host(machine: Machine, steps: Sequence[StepSample]) -> Machine:
    """Return the machine with what steps take outside their passes and the calls of proposers."""
    takers = [name for name, cost in machine.proposers.items() if cost.takes_states]
    rows = [
        (1.0, work.num_sequences, work.num_logits, work.num_drafts, float(work.num_fed > 0), work.num_fed)
        for work in (sample.work for sample in steps)
    ]
    step, row, token, draft, states, state = _fitted(rows, [sample.host_ms for sample in steps]) or [0.0] * 6
    proposers = {
        name: replace(cost, states_ms=states / len(takers), state_ms=state / len(takers)) if name in takers else cost
        for name, cost in machine.proposers.items()
    }
    return replace(machine, step_ms=step, row_ms=row, token_ms=token, draft_ms=draft, proposers=proposers)


def _scatter(machine: Machine, steps: Sequence[StepSample]) -> tuple[tuple[float, ...], ...]:
    ratios: list[list[float]] = [[] for _ in (*BANDS, None)]
    for sample in steps:
        ratios[band_of(sample.work.num_tokens)].append(sample.pass_ms / machine.expected_pass_ms(sample.work))
    everything = [ratio for band in ratios for ratio in band] or [1.0]
    return tuple(_quantiles(band if len(band) >= _FEWEST else everything) for band in ratios)


def _with_calls(kind: ProposerCost, calls: Sequence[tuple[int, int, float]]) -> ProposerCost:
    call, sequence, level, both = (
        _fitted([(1, number, depth, number * depth) for number, depth, _ in calls], [ms for *_, ms in calls])
        or [0.0] * 4
    )
    return replace(kind, call_ms=call, sequence_ms=sequence, level_ms=level, sequence_level_ms=both)


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return values that are equally likely, with the mean of the given ones."""
    quantiles = np.quantile(values, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    return tuple((quantiles * (np.mean(values) / quantiles.mean())).tolist())


def _fitted(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return coefficients, none below 0, with the least sum of absolute residuals, relative to the values.

    Few steps take many times as long as others, because something else ran; squares would fit these. Empty: no rows.
    """
    if not rows:
        return []
    target = np.maximum(1e-3, np.array(values))
    matrix, weights = np.array(rows, dtype=float) / target[:, None], np.ones(len(rows))
    fitted = np.zeros(matrix.shape[1])
    for _ in range(20):
        weighted = matrix * weights[:, None]
        fitted = _non_negative(weighted.T @ matrix, weighted.sum(axis=0), fitted)
        weights = 1.0 / np.maximum(0.02, np.abs(matrix @ fitted - 1.0))
    return [float(value) for value in fitted * (len(rows) / max(1e-9, (matrix @ fitted).sum()))]


def _non_negative(gram: Array, right: Array, start: Array) -> Array:
    """Return the least squares of the normal equations under x >= 0, by coordinate descent."""
    solution, scale = start.copy(), np.maximum(1e-12, np.diag(gram))
    for _ in range(300):
        for i in range(len(solution)):
            solution[i] = max(0.0, solution[i] + (right[i] - gram[i] @ solution) / scale[i])
    return solution
