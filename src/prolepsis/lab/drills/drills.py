"""The drills: what fails, how Chaos Mesh calls such a fault, and the signs that a server noticed. Pure."""

import re
from dataclasses import dataclass
from typing import Literal

from prolepsis.core.messages import EngineFault

Fault = Literal["requests", "store away", "disk full", "outside"] | EngineFault
"""requests: no more than those of the drill. outside: it is done by hand."""
NOT_HERE = "not here:"


@dataclass(frozen=True, slots=True)
class Sign:
    """The condition of a shipped alert: the sum of the lines of /metrics that begin like `line` rises, or falls."""

    alert: str
    line: str
    falls: bool = False

    def holds(self, before: str, now: str) -> bool:
        """`before`: the metrics before the fault."""
        was, value = (
            sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if re.match(self.line, line))
            for metrics in (before, now)
        )
        return value < was if self.falls else value > was


@dataclass(frozen=True, slots=True)
class Drill:
    """`alarm` has to hold under the fault, `safe` once the server does without what fails; None: no sign is due."""

    name: str
    chaos_mesh: str
    fails: str
    fault: Fault
    needs: str = ""  # what a server may lack
    alarm: Sign | None = None
    safe: Sign | None = None
    at_once: int = 4  # requests
    poison: str = ""  # at the end of each prompt


_FAILS = Sign("ProposerFails", "prolepsis_spec_decode_proposer_failures_total")
_OPEN = Sign("BreakerOpen", 'prolepsis_breaker_state{.*state="open"')
_DIFFER = Sign("OutputsDiffer", 'prolepsis_replays_total{.*"structural"')
_STORE = Sign("StoreDown", "prolepsis_store_up", falls=True)
_AGAIN = Sign("EngineRestarted", "prolepsis_engine_restarts_total")
_POISON = "the key red the key blue the key green the key white the key black the key grey"  # a bad guess each time
_HEAD, _STORED = "a draft head", "a store"
NEED_DRAFTS = ("proposers", _HEAD, "replays")
_BY_HAND = "a way to do it itself: docs/how-to/drills.md has the steps"
DRILLS = (
    Drill("proposer-hang", "JVMChaos", "free proposers do not come back", "hang", "proposers", _FAILS, _OPEN),
    Drill("proposer-slow", "JVMChaos", "proposers take 0.3 s longer", "slow", "proposers", _FAILS, _OPEN),
    Drill("proposer-raise", "JVMChaos", "proposers raise", "raise", "proposers", _FAILS, _OPEN),
    Drill("head-damage", "JVMChaos", "the draft head says other tokens", "damage", _HEAD, _OPEN, _OPEN),
    Drill("poisoned-prompts", "-", "prompts lead drafts astray", "requests", "proposers", poison=_POISON),
    Drill("burst", "StressChaos", "96 requests come at once", "requests", at_once=96),
    Drill("mismatch", "JVMChaos", "answers with drafts are wrong", "differ", "replays", _DIFFER, at_once=16),
    Drill("store-away", "NetworkChaos", "the store cannot be reached", "store away", _STORED, _STORE),
    Drill("disk-full", "IOChaos", "the store takes no writes", "disk full", _STORED, _STORE),
    Drill("engine-kill", "PodChaos", "the engine ends", "die", "restarts of its engine", _AGAIN, _AGAIN),
    Drill("replica-kill", "PodChaos", "one of several engines ends", "die", "several engines"),
    Drill("network-partition", "NetworkChaos", "a link between machines is cut", "outside", _BY_HAND),
    Drill("time-skew", "TimeChaos", "the clock of a machine is wrong", "outside", _BY_HAND),
)
BY_NAME = {drill.name: drill for drill in DRILLS}
