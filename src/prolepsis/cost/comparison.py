"""The cost of a token with and without speculation: against random control requests, and against the prediction.

The unit is the request: each finished one has its device seconds per output token, regardless of its length.

The cost of speculation on control requests (proposers learn from them if no other request pays for it) is left out:
their cost is what it would have been without.

- Against the control: the ratio of means, canary over control, with bounds that hold at all times at once
  (`statistics.guardrail.bounds` on a `Ratio`). Costs are clipped at `HEADROOM` times the mean of the first
  `CALIBRATION` control requests, which are not counted themselves. Routes and tenants are known before the arm is
  drawn, so these comparisons are randomised too. Proposers are not: requests with many drafts of one proposer are easy
  to draft for.
- Against the prediction: the mean over speculating requests of measured / predicted, each request its own control
  (`DeviceSeconds.predicted_plain`). It is as good as the cost curve; the cost of plain requests shows how good that is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prolepsis.cost.meter import DIMENSIONS, NO_PROPOSER, OTHER, Dimension, Experiment, RequestCost, UsageTotals
from prolepsis.statistics.arms import Arm, ArmScores, ScoreHistogram
from prolepsis.statistics.guardrail import bounds
from prolepsis.statistics.means import FINE, Limit, Ratio

CALIBRATION = 20
MIN_REQUESTS = 20
"""On each arm before there are bounds."""
MAX_GROUPS = 8
"""Values of a dimension with a comparison of their own."""
_TAIL = 0.025  # of each bound: 95 % together
_HALVINGS = 12  # of [-1, 1]: bounds to half a thousandth
_PREDICTED = Limit(limit=1.0, low=0.0, high=2.0, num_points=FINE)  # measured / predicted
_NO_ARM = ScoreHistogram.empty(FINE)


@dataclass(frozen=True, slots=True)
class Saving:
    """1 - cost / cost without speculation, negative if speculation costs more; bounds of 95 %. null: not known yet."""

    estimate: float | None
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """One group of an experiment's requests."""

    by: Dimension | Literal["all"]
    value: str
    num_speculating: int
    num_control: int
    device_s_per_token: float | None
    """All device seconds over all output tokens of the speculating requests."""
    control_device_s_per_token: float | None
    predicted_device_s_per_token: float | None
    """The predicted cost of the speculating requests without speculation."""
    saved: Saving
    """Against the control, request by request."""
    randomised: bool
    """Chance alone decided which of the group's requests speculate; else `saved` has no bounds."""
    saved_by_prediction: Saving


class _Group:
    """Both arms of a group of requests."""

    def __init__(self) -> None:
        self.totals: dict[Arm, UsageTotals] = {"canary": UsageTotals(), "control": UsageTotals()}
        self.seconds: dict[Arm, float] = {"canary": 0.0, "control": 0.0}
        self.arms = ArmScores(_NO_ARM, _NO_ARM)
        self.against_prediction = ArmScores(_NO_ARM, _NO_ARM)

    def observe(self, cost: RequestCost, measure: Ratio) -> None:
        self.totals[cost.arm].add(cost)
        self.seconds[cost.arm] += _seconds_per_token(cost) * cost.num_output_tokens
        self.arms = self.arms.observe(cost.arm, measure.score(cost.arm, _seconds_per_token(cost)))
        if cost.arm == "canary" and cost.device.predicted_plain > 0.0:
            score = _PREDICTED.score("canary", cost.device.total / cost.device.predicted_plain)
            self.against_prediction = self.against_prediction.observe("canary", score)

    def per_token(self, arm: Arm) -> float | None:
        tokens = self.totals[arm].num_output_tokens
        return self.seconds[arm] / tokens if tokens else None


class Comparison:
    """The results of one experiment, in a few kilobytes regardless of the number of requests."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._measure = Ratio(margin=0.0)
        self._first = UsageTotals()
        self._first_total = 0.0
        self._all = _Group()
        self._by: dict[Dimension, dict[str, _Group]] = {dimension: {} for dimension in DIMENSIONS}

    def observe(self, cost: RequestCost) -> None:
        """Count a request of the experiment that finished; one without tokens has no cost of a token."""
        if not cost.num_output_tokens:
            return
        if not self._measure.ready:
            self._calibrate(cost)
            return
        self._all.observe(cost, self._measure)
        for dimension in DIMENSIONS:
            groups, value = self._by[dimension], cost.value(dimension)
            if value not in groups and len(groups) >= MAX_GROUPS:
                value = OTHER
            groups.setdefault(value, _Group()).observe(cost, self._measure)

    def compared(self) -> Iterator[ArmComparison]:
        """Yield all requests, then each group; some milliseconds each, for the bounds."""
        yield self._compared("all", "", self._all, self._all.arms.control)
        for dimension, groups in self._by.items():
            for value, group in sorted(groups.items()):
                if dimension != "proposer":
                    yield self._compared(dimension, value, group, group.arms.control)
                elif value != NO_PROPOSER:
                    yield self._compared(dimension, value, group, self._all.arms.control)

    def _calibrate(self, cost: RequestCost) -> None:
        if cost.arm != "control":
            return
        self._first.add(cost)
        self._first_total += _seconds_per_token(cost)
        if self._first.num_requests >= CALIBRATION and self._first_total > 0.0:
            self._measure = self._measure.referring_to(self._first_total / self._first.num_requests)

    def _compared(
        self, by: Dimension | Literal["all"], value: str, group: _Group, control: ScoreHistogram
    ) -> ArmComparison:
        canary = group.totals["canary"]
        plain = self._all if by == "proposer" else group
        tokens = canary.num_output_tokens
        return ArmComparison(
            by=by,
            value=value,
            num_speculating=canary.num_requests,
            num_control=control.count,
            device_s_per_token=group.per_token("canary"),
            control_device_s_per_token=plain.per_token("control"),
            predicted_device_s_per_token=canary.device.predicted_plain / tokens if tokens else None,
            saved=self._saved(ArmScores(group.arms.canary, control), randomised=by != "proposer"),
            randomised=by != "proposer",
            saved_by_prediction=_saved_by_prediction(group.against_prediction),
        )

    def _saved(self, arms: ArmScores, *, randomised: bool) -> Saving:
        """Return the saving; it has bounds only if chance drew the arms, because otherwise they are not valid."""
        if not (arms.canary.count and arms.control.count and self._measure.ready):
            return Saving(None)
        estimate = -self._measure.estimate(arms.canary.mean, arms.control.mean)
        if not randomised or min(arms.canary.count, arms.control.count) < MIN_REQUESTS:
            return Saving(estimate)
        contrast = self._measure.contrast("lower", self.experiment.share)
        lower, upper = bounds(self._measure, contrast, arms, lower_alpha=_TAIL, upper_alpha=_TAIL, halvings=_HALVINGS)
        return Saving(estimate, None if upper >= 1.0 else -upper, min(1.0, -lower))


def _saved_by_prediction(arms: ArmScores) -> Saving:
    if not arms.canary.count:
        return Saving(None)
    estimate = 1.0 - _PREDICTED.high * arms.canary.mean
    if arms.canary.count < MIN_REQUESTS:
        return Saving(estimate)
    contrast = _PREDICTED.contrast("lower", 1.0)
    lower, upper = bounds(_PREDICTED, contrast, arms, lower_alpha=_TAIL, upper_alpha=_TAIL, halvings=_HALVINGS)
    least = None if upper >= 1.0 else 1.0 - _PREDICTED.shown(upper)
    return Saving(estimate, least, 1.0 - _PREDICTED.shown(max(0.0, lower)))


def _seconds_per_token(cost: RequestCost) -> float:
    device = cost.device
    return (device.total - (device.speculation if cost.arm == "control" else 0.0)) / cost.num_output_tokens


class Comparisons:
    """The newest experiment of each rollout; a new stage starts without evidence, as its verdict does."""

    _MAX = 64

    def __init__(self) -> None:
        self._by_rollout: dict[str, Comparison] = {}

    def observe(self, cost: RequestCost) -> None:
        experiment = cost.experiment
        if experiment is None or not cost.num_output_tokens or not cost.device.total:
            return
        known = self._by_rollout.get(experiment.rollout_id)
        if known is None or known.experiment != experiment:
            if known is not None and _order(experiment) < _order(known.experiment):
                return  # the request arrived in an earlier stage
            self._by_rollout.pop(experiment.rollout_id, None)
            if len(self._by_rollout) >= self._MAX:
                del self._by_rollout[next(iter(self._by_rollout))]
            known = self._by_rollout[experiment.rollout_id] = Comparison(experiment)
        known.observe(cost)

    @property
    def newest(self) -> Mapping[str, Comparison]:
        """By rollout; the one whose stage began last is last."""
        return dict(self._by_rollout)


def _order(experiment: Experiment) -> tuple[int, int, float]:
    return experiment.run, experiment.stage, experiment.share
