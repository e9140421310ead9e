"""Arms: ways for one engine to speculate, and how each is run through the engine's client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ConfigError
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.terminal.config import listed
from prolepsis.engine.timings import Timings
from prolepsis.lab.bench.measure import Outcome, Turn
from prolepsis.lab.bench.prompts import EncodedPrompt
from prolepsis.server.cli.ask import ask, in_flight

PLAIN, AUTO = "plain", "auto"


@dataclass(frozen=True, slots=True)
class Arm:
    """A named plan."""

    name: str
    plan: SpecPlan


def parse_arms(text: str, proposers: Sequence[str], num_speculative_tokens: int = 24) -> tuple[Arm, ...]:
    """Return the arms of a comma-separated list; `plain` comes first whether named or not, as the base of speedups.

    `plain` is no speculation, `auto` the engine's own decision over all its proposers, a proposer's name that proposer
    alone, and NAME@DEPTH drafts of exactly that many tokens where possible. Raises `ConfigError` for anything else.
    """
    names = listed(text)
    ordered = dict.fromkeys([PLAIN, *names])
    return tuple(_arm(name, i, proposers, num_speculative_tokens) for i, name in enumerate(ordered, 1))


def _arm(name: str, version: int, proposers: Sequence[str], ceiling: int) -> Arm:
    reason = f"bench arm {name}"
    if name == PLAIN:
        return Arm(name, SpecPlan(version, num_speculative_tokens=0, reason=reason))
    base, at, depth = name.partition("@")
    if base != AUTO and base not in proposers:
        allowed = ", ".join((PLAIN, AUTO, *proposers))
        raise ConfigError(
            f"arm {name!r} is unknown; allowed: {allowed}, all except plain also as NAME@DEPTH", param="arms"
        )
    if at and not (depth.isascii() and depth.isdigit() and int(depth) > 0):
        raise ConfigError(f"arm {name!r} has depth {depth!r}; allowed: 1 or more", param="arms")
    fixed = int(depth) if at else None
    chosen = None if base == AUTO else (base,)
    return Arm(name, SpecPlan(version, max(ceiling, fixed or 0), chosen, fixed, reason))


@dataclass(frozen=True, slots=True)
class ArmSetup:
    """Settings that all arms share."""

    client: EngineClient
    params: SamplingParams
    seeds: Mapping[str, int]
    """By prompt id."""
    times: Timings | None = None


class EngineArm:
    """Puts its plan into effect before each turn.

    Each round has a tenant scope of its own: nothing cached or learned in another round, or by another arm, is visible
    in it. Within a round the shared indexes learn from prompt to prompt, as they do in service.
    """

    def __init__(self, arm: Arm, setup: ArmSetup) -> None:
        self.name = arm.name
        self._arm = arm
        self._setup = setup
        self._scope = f"bench {arm.name}"
        self._num_requests = 0

    async def begin(self, round_name: str) -> None:
        self._scope = f"bench {self.name} {round_name}"

    async def run(self, prompts: Sequence[EncodedPrompt], concurrency: int) -> Turn:
        self._setup.client.send(ApplyPlan(self._arm.plan))
        before = self._step_times()
        outcomes = await in_flight([partial(self._one, prompt) for prompt in prompts], concurrency)
        passes, forward, outside = (now - then for now, then in zip(self._step_times(), before, strict=True))
        return Turn(outcomes, int(passes), forward, outside)

    async def _one(self, prompt: EncodedPrompt) -> Outcome:
        answer = await ask(self._setup.client, self._request(prompt))
        stats = answer.stats
        return Outcome(
            prompt.id,
            prompt.category,
            answer.token_ids,
            answer.seconds,
            first_token_s=answer.first_token_s,
            queue_s=stats.queue_s,
            compute_s=stats.compute_s,
            num_steps=stats.num_steps,
            proposers=tuple((n, c.num_draft_tokens, c.num_accepted) for n, c in sorted(stats.proposers.items())),
        )

    def _request(self, prompt: EncodedPrompt) -> GenerateRequest:
        self._num_requests += 1
        return GenerateRequest(
            request_id=f"{self._scope} {self._num_requests}",
            prompt_token_ids=prompt.token_ids,
            params=replace(self._setup.params, seed=self._setup.seeds.get(prompt.id, self._setup.params.seed)),
            cache_salt=self._scope,
        )

    def _step_times(self) -> tuple[float, float, float]:
        times = self._setup.times
        return (times.num_steps, times.totals.forward, times.totals.outside_forward) if times else (0.0, 0.0, 0.0)
