"""An arm run on an engine through its client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from prolepsis.cli.bench.arms import Arm
from prolepsis.cli.bench.ask import ask, in_flight
from prolepsis.cli.bench.measure import Outcome, Turn
from prolepsis.cli.bench.prompts import EncodedPrompt
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.client import EngineClient


class StepSums(Protocol):
    """Sums over all steps, in seconds; `engine.timings.Timings.totals` is the real one."""

    @property
    def forward(self) -> float: ...

    @property
    def outside_forward(self) -> float: ...


class StepTimes(Protocol):
    """What an engine in this process tells of its steps; `engine.timings.Timings` is the real one."""

    @property
    def num_steps(self) -> int: ...

    @property
    def totals(self) -> StepSums: ...


@dataclass(frozen=True, slots=True)
class Asking:
    """What all arms share."""

    client: EngineClient
    params: SamplingParams
    seeds: Mapping[str, int]
    """By prompt id."""
    times: StepTimes | None = None


class EngineArm:
    """Puts its plan into effect before each turn.

    Each round has a tenant scope of its own: nothing cached or learnt in another round, or by another arm, is visible
    in it. Within a round the shared indexes learn from prompt to prompt, as they do in service.
    """

    max_concurrency: int | None = None
    expendable = False

    def __init__(self, arm: Arm, asking: Asking) -> None:
        self.name = arm.name
        self._arm = arm
        self._asking = asking
        self._scope = f"bench {arm.name}"
        self._asked = 0

    async def begin(self, round_name: str) -> None:
        self._scope = f"bench {self.name} {round_name}"

    async def run(self, prompts: Sequence[EncodedPrompt], concurrency: int) -> Turn:
        self._asking.client.apply_plan(self._arm.plan)
        before = self._step_times()
        outcomes = await in_flight([partial(self._one, prompt) for prompt in prompts], concurrency)
        passes, forward, outside = (now - then for now, then in zip(self._step_times(), before, strict=True))
        return Turn(outcomes, int(passes), forward, outside)

    async def _one(self, prompt: EncodedPrompt) -> Outcome:
        answer = await ask(self._asking.client, self._request(prompt))
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
        self._asked += 1
        return GenerateRequest(
            request_id=f"{self._scope} {self._asked}",
            prompt_token_ids=prompt.token_ids,
            params=replace(self._asking.params, seed=self._asking.seeds.get(prompt.id, self._asking.params.seed)),
            scope=self._scope,
        )

    def _step_times(self) -> tuple[float, float, float]:
        times = self._asking.times
        return (times.num_steps, times.totals.forward, times.totals.outside_forward) if times else (0.0, 0.0, 0.0)
