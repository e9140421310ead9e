"""Drift of a proposer in one traffic class: worse than its baseline (drift), or suddenly useless (a cliff). Pure.

A baseline belongs to what it measures: proposer, traffic class, and the version of head and target. It is learned from
requests, as drafts of one request do about equally well: each gives one score, from its first judged drafts. A cliff is
a fall of the traffic class, whichever version it had before: a damaged head begins with its deployment.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from prolepsis.control.health.reliability import Reliability
from prolepsis.control.statistics.change import MeanState, MeanWatch
from prolepsis.core.ended import RequestEnded
from prolepsis.core.json_value import JsonValue
from prolepsis.core.stats import JudgedDraft, TrafficClassCounts

Kind = Literal[
    "drift",  # acceptance at position 1 fell and stays low
    "divergence",  # the proposer overestimates its acceptance more than before
    "cliff",  # acceptance suddenly fell to nearly nothing: possible corruption
    "recovered",  # a cliff is over
    "benefit_gone",  # its drafts bring less than half of the tokens that they brought
]
Status = Literal["learning", "steady", "drifted", "cliff"]
STATUSES: tuple[Status, ...] = ("learning", "steady", "drifted", "cliff")
Key = tuple[str, str]  # proposer and traffic class


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSettings:
    min_fall: float = 0.04  # smaller falls of acceptance raise no alarm
    min_fall_share: float = 0.1  # nor do those below this share of the baseline
    min_gap_rise: float = 0.1  # smaller rises of the overestimation raise no alarm
    cliff_judged: int = 256  # minimum number of judged drafts in the window in which a cliff is detected
    cliff_s: float = 10.0  # minimum duration of that window in seconds
    cliff_requests: int = 20
    """Requests that show a cliff of a version without a baseline, against the level before it."""
    cliff_share: float = 0.1  # A cliff: acceptance is at most this share of its earlier value
    cliff_from: float = 0.3  # minimum acceptance before a cliff: below it there is nothing to fall from
    recovered_share: float = 0.5  # A cliff is over when acceptance reaches this share of its earlier value

    def tolerance(self, baseline: float) -> float:
        """Return how far acceptance may fall from its baseline."""
        return max(self.min_fall, self.min_fall_share * baseline)


@dataclass(frozen=True, slots=True)
class DriftAlarm:
    """`before` and `after`: acceptance of first drafted tokens; for a divergence the overestimation, for a benefit the
    share of the answers' tokens that the proposer brought."""

    at: float  # seconds of the server's monotonic clock
    proposer: str
    traffic_class: str
    version: str
    kind: Kind
    before: float
    after: float
    num_judged: int  # drafts judged since this version was deployed; for a benefit, requests
    total_variation: float | None = None
    """For a divergence: a lower bound of the distance between the next-token distributions of proposer and target."""


class _RecentShare:
    """Share of right first tokens over the shortest recent time with at least `min_judged` drafts and `min_s` seconds.

    The minimum duration keeps a single request that is hard to draft for from filling the window.
    """

    def __init__(self, min_judged: int, min_s: float) -> None:
        self._min_judged = min_judged
        self._min_s = min_s
        self._readings: deque[tuple[float, int, int]] = deque()

    def add(self, reading: TrafficClassCounts, now: float) -> None:
        """Process a reading at `now` (seconds) that has more judged drafts than the one before.

        The number of readings kept is bounded by those within `min_s`, and by `min_judged`.
        """
        self._readings.append((now, reading.num_judged, reading.num_right))
        while len(self._readings) > 1 and self._is_enough(1):
            self._readings.popleft()

    @property
    def value(self) -> float | None:
        """None before there is enough."""
        if not self._readings or not self._is_enough(0):
            return None
        (_, first, right_first), (_, last, right_last) = self._readings[0], self._readings[-1]
        return (right_last - right_first) / (last - first)

    def clear(self, reading: TrafficClassCounts, now: float) -> None:
        """Start again after `reading`."""
        self._readings = deque([(now, reading.num_judged, reading.num_right)])

    def _is_enough(self, i: int) -> bool:
        (began, first, _), (now, last, _) = self._readings[i], self._readings[-1]
        return last - first >= self._min_judged and now - began >= self._min_s


@dataclass(frozen=True, slots=True)
class StreamState(JsonValue):
    acceptance: MeanState
    gap: MeanState
    drifted: bool
    reliability: tuple[tuple[float, float, float], ...]
    before_fall: float | None = None
    """The level before a change, or of the version before, while this one has no baseline."""

    @property
    def level(self) -> float | None:
        """As in `DriftStream.acceptance`."""
        known = self.acceptance
        return self.before_fall if known.is_learning and self.before_fall is not None else known.mean


class DriftStream:
    """One proposer, in one version, for one traffic class.

    Requests give acceptance at position 1, and the proposer's estimates for its first tokens less the outcomes; each is
    watched against its baseline. The engine's counts show a cliff, during which the baselines stay as they are. Times
    in seconds of one monotonic clock; the size is constant.
    """

    def __init__(
        self,
        reading: TrafficClassCounts,
        version: str,
        now: float,
        settings: DriftSettings,
        state: StreamState | None = None,
    ) -> None:
        """`state`: what it had learned before a restart, or before another version was in use."""
        self.version = version
        self.since = now
        self.seen = reading
        self._began = reading
        self._settings = settings
        self._in_cliff = False
        self._fell_to: float | None = None
        self._before_fall = state.before_fall if state is not None else None
        """The last baseline, or that of the version before, while another one is learned."""
        self._drifted = state is not None and state.drifted
        self._acceptance = MeanWatch(settings.tolerance, state.acceptance if state else None)
        gap_tolerance = settings.min_gap_rise / 2.0  # on the scale of scores
        self._gap = MeanWatch(lambda _: gap_tolerance, state.gap if state else None)
        self._reliability = Reliability(state.reliability if state else ())
        self._recent = _RecentShare(settings.cliff_judged, settings.cliff_s)
        self._recent.clear(reading, now)

    @property
    def status(self) -> Status:
        if self._in_cliff:
            return "cliff"
        if self._drifted:
            return "drifted"
        return "learning" if self._acceptance.baseline is None else "steady"

    @property
    def state(self) -> StreamState:
        acceptance, gap = self._acceptance.state, self._gap.state
        return StreamState(acceptance, gap, self._drifted, self._reliability.bins, self._before_fall)

    @property
    def acceptance(self) -> float | None:
        """The baseline, the one before while it is learned; None before there is enough to recognise a cliff."""
        return self._before_fall if self._compares_with_before else self._acceptance.mean

    @property
    def _compares_with_before(self) -> bool:
        return self._acceptance.baseline is None and self._before_fall is not None

    def follow(self, level: float | None) -> None:
        """Recognise a cliff by the level of the previous version until this one has a baseline."""
        if self._before_fall is None:
            self._before_fall = level

    @property
    def overestimated(self) -> float | None:
        """How much the proposer overestimated its acceptance lately; None if it gives no estimates."""
        return _as_gap(self._gap.recent) if self._gap.number else None

    @property
    def total_variation(self) -> float | None:
        return self._reliability.total_variation

    @property
    def num_judged(self) -> int:
        return self.seen.num_judged - self._began.num_judged

    @property
    def recent_acceptance(self) -> float | None:
        """Acceptance over the window in which cliffs are detected; until it is full in a cliff, what it fell to."""
        recent = self._recent.value
        return self._fell_to if recent is None and self._in_cliff else recent

    def see(self, judged: Sequence[JudgedDraft], now: float) -> list[DriftAlarm]:
        """Process the first judged drafts of a request that ended, if there are any; return the alarms."""
        if self._in_cliff or not judged:
            return []
        alarms = [*self._see_acceptance(sum(draft.right for draft in judged) / len(judged), now)]
        estimated = [(draft.estimate, draft.right) for draft in judged if draft.estimate is not None]
        for estimate, right in estimated:
            self._reliability.add(estimate, right=right)
        if estimated:
            alarms += self._see_gap(sum(estimate - right for estimate, right in estimated) / len(estimated), now)
        self._drifted |= any(alarm.kind != "cliff" for alarm in alarms)
        return alarms

    def _see_acceptance(self, score: float, now: float) -> list[DriftAlarm]:
        """A fall to nearly nothing is a cliff: the baseline stays, so that its end is seen."""
        watch, before, compares = self._acceptance, self.acceptance, self._compares_with_before
        change, begun = watch.see(score), watch.mean_after(self._settings.cliff_requests)
        if compares and before is not None and begun is not None and self._is_cliff(before, begun):
            watch.restart()
            return [self._begin_cliff(before, begun, now)]
        if change is None:
            return []
        if change == "lower" and before is not None and self._is_cliff(before, watch.recent):
            watch.bet_again()
            return [self._begin_cliff(before, watch.recent, now)]
        alarms = [self._alarm("drift", now, before, watch.recent)] if change == "lower" else []
        self._before_fall = before
        watch.restart()
        return alarms

    def _see_gap(self, gap: float, now: float) -> list[DriftAlarm]:
        watch, usual = self._gap, self._gap.mean
        change = watch.see((1.0 + gap) / 2.0)
        if change is None:
            return []
        assert usual is not None, "a change is one of a mean"
        alarms = [self._alarm("divergence", now, _as_gap(usual), _as_gap(watch.recent))] if change == "higher" else []
        watch.restart()
        return alarms

    def _is_cliff(self, before: float, recent: float) -> bool:
        return before >= self._settings.cliff_from and recent <= self._settings.cliff_share * before

    def _begin_cliff(self, before: float, recent: float, now: float) -> DriftAlarm:
        self._in_cliff, self._fell_to = True, recent
        self._recent.clear(self.seen, now)
        return self._alarm("cliff", now, before, recent)

    def observe(self, reading: TrafficClassCounts, now: float) -> list[DriftAlarm]:
        """Process a reading of counts that only grow; return a cliff, or its end."""
        self.seen = reading
        self._recent.add(reading, now)
        recent, before = self._recent.value, self.acceptance
        if recent is None or before is None:
            return []
        if self._in_cliff:
            if recent < self._settings.recovered_share * before:
                return []
            self._in_cliff = False
            return [self._alarm("recovered", now, before, recent)]
        return [self._begin_cliff(before, recent, now)] if self._is_cliff(before, recent) else []

    def recount(self, reading: TrafficClassCounts, now: float) -> None:
        """Continue from counts that began again."""
        self.seen = self._began = reading
        self._recent.clear(reading, now)

    def _alarm(self, kind: Kind, now: float, before: float | None, after: float) -> DriftAlarm:
        assert before is not None, "an alarm compares"
        seen, distance = self.seen, self.total_variation if kind == "divergence" else None
        return DriftAlarm(
            now, seen.proposer, seen.traffic_class, self.version, kind, before, after, self.num_judged, distance
        )


def _as_gap(score: float) -> float:
    """Return the overestimation, in [-1, 1], of which `score` is the score."""
    return 2.0 * score - 1.0


class DriftStreams:
    """One stream for each pair that the engine counts, in the version in use; those of other versions are kept."""

    def __init__(self, version_of: Callable[[str], str], settings: DriftSettings | None = None) -> None:
        """`version_of` maps a proposer's name to its version."""
        self._version_of = version_of
        self._settings = settings or DriftSettings()
        self._streams: dict[Key, DriftStream] = {}
        self.kept: dict[tuple[Key, str], StreamState] = {}
        """What streams of other versions, and of earlier starts, had learned; the version used last is the last one."""

    @property
    def all(self) -> Mapping[Key, DriftStream]:
        return self._streams

    def restore(self, states: Mapping[tuple[Key, str], StreamState], now: float) -> None:
        """Continue from what was learned before a restart, the last version last, unless more is known by now."""
        older = {place: state for place, state in states.items() if place not in self.kept}
        self.kept = {**older, **self.kept}
        for key, stream in self._streams.items():
            state = self.kept.pop((key, stream.version), None)
            if state is not None and state.acceptance.number >= stream.state.acceptance.number:
                self._streams[key] = DriftStream(stream.seen, stream.version, now, self._settings, state)
            self._streams[key].follow(self._level_before(key, stream.version))

    def states(self) -> Mapping[tuple[Key, str], StreamState]:
        """Return what every stream has learned, also those of other versions."""
        return {**self.kept, **{(key, stream.version): stream.state for key, stream in self._streams.items()}}

    def observe(self, counts: Iterable[TrafficClassCounts], now: float) -> list[DriftAlarm]:
        """Process the engine's counts; return the alarms."""
        alarms: list[DriftAlarm] = []
        for reading in counts:
            stream = self._stream(reading, now)
            if reading.num_judged < stream.seen.num_judged:
                stream.recount(reading, now)
            elif reading.num_judged > stream.seen.num_judged:
                alarms += stream.observe(reading, now)
        return alarms

    def see(self, ended: RequestEnded, now: float) -> list[DriftAlarm]:
        """Process the first judged drafts of a request, as far as the versions in use made them; return the alarms."""
        judged: dict[str, list[JudgedDraft]] = {}
        for prompt in ended.prompts:
            for proposer, drafts in prompt.stats.judged.items():
                if prompt.stats.is_evidence_of(proposer, self._version_of(proposer)):
                    judged.setdefault(proposer, []).extend(drafts)
        alarms: list[DriftAlarm] = []
        for proposer, drafts in judged.items():
            alarms += self.judge((proposer, ended.prompts[0].request.traffic_class), drafts, now)
        return alarms

    def judge(self, key: Key, judged: Sequence[JudgedDraft], now: float) -> list[DriftAlarm]:
        """Process the first judged drafts of one proposer in one request; return the alarms."""
        stream = self._streams.get(key)
        reading = stream.seen if stream is not None else TrafficClassCounts(*key)
        return self._stream(reading, now).see(judged, now) if judged else []

    def reset(self, key: Key, now: float) -> DriftStream:
        """Start a stream again, without a baseline; raises `KeyError` for an unknown one."""
        stream = self._streams[key]
        fresh = self._streams[key] = DriftStream(stream.seen, stream.version, now, self._settings)
        return fresh

    def _stream(self, reading: TrafficClassCounts, now: float) -> DriftStream:
        key, version = (reading.proposer, reading.traffic_class), self._version_of(reading.proposer)
        stream = self._streams.get(key)
        if stream is None or stream.version != version:
            if stream is not None:
                self.kept[key, stream.version] = stream.state
            state = self.kept.pop((key, version), None)
            stream = self._streams[key] = DriftStream(reading, version, now, self._settings, state)
            stream.follow(self._level_before(key, version))
        return stream

    def _level_before(self, key: Key, version: str) -> float | None:
        """Return the level that a traffic class had with the last version known of the same target."""
        of_key = (
            state.level
            for (other, kept), state in reversed(self.kept.items())
            if other == key and _target_of(kept) == _target_of(version)
        )
        return next((level for level in of_key if level is not None), None)


def _target_of(version: str) -> str:
    """Return the target of a version, which its last word names (`EngineInfo.weights_of`)."""
    return version.rpartition(" ")[2]
