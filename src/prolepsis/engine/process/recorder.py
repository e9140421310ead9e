"""An observer whose calls are made elsewhere: in the server's process."""

from collections.abc import Callable, Mapping

from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import RequestStats
from prolepsis.engine.containment import ContainedPart
from prolepsis.engine.process.messages import Observed


class Recorder:
    """An `EngineObserver` that passes each call on as a value."""

    def __init__(self, put: Callable[[Observed], None]) -> None:
        """`put` is called from the engine's thread."""
        self._put = put

    def step_done(self, seconds: Mapping[str, float], num_tokens: int) -> None:
        self._put(Observed("step_done", (dict(seconds), num_tokens)))

    def request_ended(self, stats: RequestStats) -> None:
        self._put(Observed("request_ended", (stats,)))

    def proposer_failed(self, proposer: str, num_failures: int = 1) -> None:
        self._put(Observed("proposer_failed", (proposer, num_failures)))

    def fault_contained(self, part: ContainedPart, num_faults: int = 1) -> None:
        self._put(Observed("fault_contained", (part, num_faults)))

    def grammar_failed(self) -> None:
        self._put(Observed("grammar_failed", ()))

    def logits_not_finite(self) -> None:
        self._put(Observed("logits_not_finite", ()))

    def remote_rounds(self, rounds: RemoteRounds) -> None:
        self._put(Observed("remote_rounds", (rounds,)))
