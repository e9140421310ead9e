"""What speculation saves: against random control requests, and against the prediction.

`saved` is the share of device seconds: 1 - seconds of the canary / seconds of the same requests without
speculation. All seconds count alike, so a long answer weighs more than a short one.

The cost of speculation on control requests (proposers learn from them if no other request pays for it) is left out:
their cost is what it would have been without.

- Against the control: control requests have a price per prompt token that was computed and per output token, and the
  canary requests are compared with their own tokens at these prices. Both counts are the same with and without
  drafts, so short and long prompts and answers do not blur the comparison. Bounds hold at all times at once
  (`control.statistics.adjusted`). Routes and tenants are known before the arm is drawn, so these comparisons are
  randomised too. Proposers are not: requests with many drafts of one proposer are easy to draft for.
- Against the prediction: the ratio of measured and predicted seconds of the canary, each request its own
  control (`DeviceSeconds.predicted_plain`). It is as good as the cost curve; the cost of plain requests shows how good
  that is.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from prolepsis.control.cost.meter import COMPARED, NO_PROPOSER, OTHER, Compared, Experiment, RequestCost
from prolepsis.control.statistics.adjusted import AdjustedRatio, reach_after
from prolepsis.control.statistics.arms import Arm
from prolepsis.core.traffic_sums import Interval

CALIBRATION = 20
"""Control requests that give the first prices; they, and the canary's until then, are counted with these."""
MIN_REQUESTS = 20  # on each arm before there are bounds
MAX_GROUPS = 8  # values of a dimension with a comparison of their own
_MAX_WAITING = 2000  # requests that wait for the first prices; of more, the oldest are left out of the bounds
_TAIL = 0.025  # of each bound: 95 % together


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """One group of an experiment's requests."""

    by: Compared | Literal["all"]
    value: str
    num_canary: int
    num_control: int
    device_s_per_token: float | None  # all device seconds over all output tokens of the canary
    control_device_s_per_token: float | None
    """The same tokens at the prices of the control: `saved` is 1 - the figure above / this one."""
    predicted_device_s_per_token: float | None
    """The predicted cost of the canary without speculation, over their output tokens."""
    saved: Interval
    """1 - seconds / seconds without speculation, negative if speculation costs more: against the control.

    Where chance drew the arms there is no estimate without bounds.
    """
    randomised: bool  # chance alone decided which of the group's requests speculate; else `saved` has no bounds
    saved_by_prediction: Interval


@dataclass(frozen=True, slots=True)
class _Prices:
    """Device seconds of control requests per prompt token that was computed, and per output token."""

    prompt: float
    output: float

    def of(self, num_prompt_tokens: int, num_output_tokens: int) -> float:
        return self.prompt * num_prompt_tokens + self.output * num_output_tokens


@dataclass(slots=True)
class _ArmTotals:
    """Sums over the requests of one arm."""

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    prefill_s: float = 0.0
    seconds: float = 0.0
    predicted_plain_s: float = 0.0
    predicted_seconds: float = 0.0  # of the requests with a prediction

    def add(self, cost: RequestCost) -> None:
        self.num_requests += 1
        self.num_prompt_tokens += cost.num_computed_tokens
        self.num_output_tokens += cost.num_output_tokens
        self.prefill_s += cost.device.prefill
        self.seconds += _seconds(cost)
        self.predicted_plain_s += cost.device.predicted_plain
        self.predicted_seconds += cost.device.total if cost.device.predicted_plain > 0.0 else 0.0

    @property
    def prices(self) -> _Prices | None:
        """None before there are output tokens."""
        if not self.num_output_tokens:
            return None
        prefill = self.prefill_s if self.num_prompt_tokens else 0.0
        prompt = prefill / self.num_prompt_tokens if self.num_prompt_tokens else 0.0
        return _Prices(prompt, (self.seconds - prefill) / self.num_output_tokens)

    def at(self, prices: _Prices) -> float:
        """Return what these requests cost at some prices, in seconds."""
        return prices.of(self.num_prompt_tokens, self.num_output_tokens)


class _Group:
    """Both arms of a group of requests."""

    def __init__(self, share: float) -> None:
        self.arms: dict[Arm, _ArmTotals] = {"canary": _ArmTotals(), "control": _ArmTotals()}
        self.to_control = AdjustedRatio(share)
        self.to_prediction = AdjustedRatio(None)

    def score(self, cost: RequestCost, prices: _Prices, typical: float, reach: float) -> None:
        """Let a request count for the bounds."""
        expected = prices.of(cost.num_computed_tokens, cost.num_output_tokens)
        if expected > 0.0:
            self.to_control.observe(cost.arm, _seconds(cost), expected=expected, typical=typical, reach=reach)
        predicted = cost.device.predicted_plain
        if cost.arm == "canary" and predicted > 0.0:
            self.to_prediction.observe("canary", cost.device.total, expected=predicted, typical=typical, reach=reach)


class Comparison:
    """The results of one experiment, in a bounded number of kilobytes regardless of the number of requests."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._all = _Group(experiment.share)
        self._by: dict[Compared, dict[str, _Group]] = {dimension: {} for dimension in COMPARED}
        self._waiting: deque[tuple[RequestCost, Sequence[_Group]]] = deque(maxlen=_MAX_WAITING)
        self._num_scored = 0

    def observe(self, cost: RequestCost) -> None:
        """Count a request of the experiment that finished; one without tokens has no cost of a token."""
        if not cost.num_output_tokens:
            return
        groups = [self._all, *(self._group(dimension, cost.value(dimension)) for dimension in COMPARED)]
        for group in groups:
            group.arms[cost.arm].add(cost)
        self._waiting.append((cost, groups))
        control = self._all.arms["control"]
        if control.num_requests >= CALIBRATION and control.seconds > 0.0:
            for waiting, its_groups in self._waiting:
                self._score(waiting, its_groups)
            self._waiting.clear()

    def excludes(self, saving: float) -> bool:
        """Return whether the bounds over all requests leave out a saving against the control."""
        ratio = self._all.to_control
        return ratio.least_count >= MIN_REQUESTS and ratio.excludes(1.0 - saving, _TAIL)

    def compared(self) -> Iterator[ArmComparison]:
        """Yield all requests, then each group; some milliseconds each, for the bounds."""
        yield self._compared("all", "", self._all, self._all.arms["control"])
        for dimension, groups in self._by.items():
            for value, group in sorted(groups.items()):
                if dimension != "proposer":
                    yield self._compared(dimension, value, group, group.arms["control"])
                elif value != NO_PROPOSER:
                    yield self._compared(dimension, value, group, self._all.arms["control"])

    def _group(self, dimension: Compared, value: str) -> _Group:
        groups = self._by[dimension]
        if value not in groups and len(groups) >= MAX_GROUPS:
            value = OTHER
        return groups.setdefault(value, _Group(self.experiment.share))

    def _score(self, cost: RequestCost, groups: Sequence[_Group]) -> None:
        """Let a request count for the bounds, at the prices that control requests had until it ended."""
        control = self._all.arms["control"]
        prices = control.prices
        assert prices is not None, "control requests have output tokens"
        typical = control.at(prices) / control.num_requests
        for group in groups:
            group.score(cost, prices, typical, reach_after(self._num_scored))
        self._num_scored += 1

    def _compared(self, by: Compared | Literal["all"], value: str, group: _Group, control: _ArmTotals) -> ArmComparison:
        canary, randomised = group.arms["canary"], by != "proposer"
        tokens, prices = canary.num_output_tokens, control.prices
        plain_s = canary.at(prices) if prices is not None else 0.0
        return ArmComparison(
            by=by,
            value=value,
            num_canary=canary.num_requests,
            num_control=control.num_requests,
            device_s_per_token=canary.seconds / tokens if tokens else None,
            control_device_s_per_token=plain_s / tokens if tokens and plain_s else None,
            predicted_device_s_per_token=canary.predicted_plain_s / tokens if tokens else None,
            saved=_saving(canary.seconds, plain_s, group.to_control if randomised else None),
            randomised=randomised,
            saved_by_prediction=_saving(canary.predicted_seconds, canary.predicted_plain_s, group.to_prediction),
        )


def _saving(seconds: float, plain_s: float, ratio: AdjustedRatio | None) -> Interval:
    """Return the saving. `ratio` gives the bounds; without them there is no estimate, and None has none."""
    if not seconds or not plain_s:
        return Interval(None)
    estimate = 1.0 - seconds / plain_s
    if ratio is None:
        return Interval(estimate)
    if ratio.least_count < MIN_REQUESTS:
        return Interval(None)
    lower, upper = ratio.bounds(_TAIL)
    # The estimate is of all seconds, the bounds of clipped ones: where they part, the bounds give way.
    least = None if math.isinf(upper) else min(estimate, 1.0 - upper)
    return Interval(estimate, least, max(estimate, 1.0 - lower))


def _seconds(cost: RequestCost) -> float:
    return cost.device.total - (cost.device.speculation if cost.arm == "control" else 0.0)


@dataclass(frozen=True, slots=True)
class ComparedExperiment:
    """The newest stage of a rollout."""

    rollout: str
    run: int
    stage_number: int
    share: float
    groups: tuple[ArmComparison, ...]


class Comparisons:
    """The newest experiment of each rollout; a new stage starts without evidence, as its judgement does."""

    _MAX = 64

    def __init__(self) -> None:
        self._by_rollout: dict[str, Comparison] = {}

    def observe(self, cost: RequestCost) -> None:
        experiment = cost.experiment
        if experiment is None or not cost.num_output_tokens or not cost.device.total:
            return
        known = self._by_rollout.get(experiment.rollout_id)
        if known is None or known.experiment != experiment:
            if known is not None and experiment < known.experiment:
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

    def compared(self) -> tuple[ComparedExperiment, ...]:
        """Return all groups of all rollouts, some tenths of a second each."""
        return tuple(
            ComparedExperiment(known.rollout_id, known.run, known.stage, known.share, tuple(comparison.compared()))
            for comparison in self.newest.values()
            for known in (comparison.experiment,)
        )

    def overall(self) -> Mapping[str, ArmComparison]:
        """Return all requests of each rollout, some milliseconds each."""
        newest = self.newest.items()
        return {rollout_id: next(comparison.compared()) for rollout_id, comparison in newest}
