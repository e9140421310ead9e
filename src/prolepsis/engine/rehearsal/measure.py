"""Measures the parts of an engine's steps while it serves, and fits a `Machine` to them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from prolepsis.core.figures import Figure, StepDone
from prolepsis.engine.drafting.choose import ProposerKind
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.rehearsal.machine import BANDS, Machine, ProposerCost, RehearsedSettings, band_of
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed, PassRunner
from prolepsis.engine.step import Engine

_QUANTILES = 41
_FEWEST = 20
"""Passes of a band, below which its scatter is that of all passes."""


@dataclass(slots=True)
class _StepSample:
    """One step as it was measured; times in milliseconds."""

    num_tokens: int
    num_context: int
    num_rows: int
    num_drafts: int
    pass_ms: float = 0.0
    total_ms: float = 0.0
    propose_ms: float = 0.0
    """In calls that ask proposers for drafts."""


@dataclass(slots=True)
class MeasuredSteps:
    """The steps of some time, and the calls of proposers in them: sequences, levels, milliseconds."""

    steps: list[_StepSample] = field(default_factory=list)
    calls: dict[str, list[tuple[int, int, float]]] = field(default_factory=dict)


class StepMeter:
    """Watches an engine from the moment it is built: a `PassRunner` around its own, and an `EngineObserver`.

    Steps that read nothing or fail are left out.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._inner: PassRunner | None = None
        self._running: _StepSample | None = None
        self._measured = MeasuredSteps()

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
        num_tokens, num_context = sum(row.num_scheduled_tokens for row in rows), sum(row.start for row in rows)
        num_drafts = sum(row.draft is not None for row in rows)
        self._running = _StepSample(num_tokens, num_context, len(rows), num_drafts)
        return self._inner.forward(rows, aux_layers)

    def compact(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        assert self._inner is not None, "an engine is watched"
        self._inner.compact(rows, sampled)

    def observe(self, figure: Figure) -> None:
        """Take in what a step took."""
        if not isinstance(figure, StepDone) or self._running is None or self._engine is None:
            return
        sample, self._running = self._running, None
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
        """Return what was measured as a machine; `passes` predicts passes, which scatter around that."""
        assert self._engine is not None, "an engine is watched"
        drafters = self._engine.speculation.proposers
        step_ms, row_ms, token_ms, draft_ms = _fitted(
            [(1, one.num_rows, one.num_tokens, one.num_drafts) for one in measured.steps],
            [one.total_ms - one.pass_ms - one.propose_ms for one in measured.steps],
            width=4,
        )
        return Machine(
            passes=passes,
            expected=drafters.cost,
            scatter=_scatter(passes, measured.steps),
            step_ms=step_ms,
            row_ms=row_ms,
            token_ms=token_ms,
            draft_ms=draft_ms,
            engine=self._settings(self._engine),
            proposers={name: _cost(measured.calls.get(name, []), kind) for name, kind in drafters.kinds.items()},
        )

    @staticmethod
    def _settings(engine: Engine) -> RehearsedSettings:
        limits, pool = engine.scheduler.limits, engine.scheduler.pool
        return RehearsedSettings(
            max_requests=limits.max_sequences,
            max_step_tokens=limits.max_step_tokens,
            max_model_len=limits.max_model_len,
            num_pages=pool.num_pages,
            num_speculative_tokens=engine.plan.current.num_speculative_tokens,
            chunk_limit_ms=engine.scheduler.chunk_limit_ms,
            shadow_cost=engine.speculation.shadow_share,
            prefix_cache=pool.prefix_cache,
        )


def _scatter(passes: CostCurve, steps: Sequence[_StepSample]) -> tuple[tuple[float, ...], ...]:
    ratios: list[list[float]] = [[] for _ in (*BANDS, None)]
    for one in steps:
        ratios[band_of(one.num_tokens)].append(one.pass_ms / passes.ms(one.num_tokens, one.num_context))
    everything = [ratio for band in ratios for ratio in band] or [1.0]
    return tuple(_quantiles(band if len(band) >= _FEWEST else everything) for band in ratios)


def _cost(calls: Sequence[tuple[int, int, float]], kind: ProposerKind) -> ProposerCost:
    call, sequence, level = _fitted(
        [(1, number, depth) for number, depth, _ in calls], [ms for *_, ms in calls], width=3
    )
    return ProposerCost(call_ms=call, sequence_ms=sequence, level_ms=level, free=kind.free, one_pass=kind.one_pass)


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(np.quantile(values, (i + 0.5) / _QUANTILES)) for i in range(_QUANTILES))


def _fitted(rows: Sequence[Sequence[int]], values: Sequence[float], *, width: int) -> list[float]:
    """Return coefficients, none below 0, by which the sum over all rows is that of the values.

    Their proportions have the least absolute residuals (by reweighted least squares): few steps take many times as long
    as others, because something else ran, and squares would fit these. Such steps count in the sum.
    """
    if not rows:
        return [0.0] * width
    matrix, target, weights = np.array(rows, dtype=float), np.array(values), np.ones(len(rows))
    found = np.zeros(width)
    for _ in range(20):
        root = np.sqrt(weights)
        found = np.maximum(0.0, np.linalg.lstsq(matrix * root[:, None], target * root, rcond=None)[0])
        weights = 1.0 / np.maximum(1e-3, np.abs(matrix @ found - target))
    scale = target.sum() / max(1e-9, (matrix @ found).sum())
    return [float(scale * one) for one in found]
