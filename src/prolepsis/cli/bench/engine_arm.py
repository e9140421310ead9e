"""An arm run on an engine through its client."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from prolepsis.cli.bench.arms import Arm
from prolepsis.cli.bench.ask import ask, in_flight
from prolepsis.cli.bench.measure import Outcome
from prolepsis.cli.bench.prompts import EncodedPrompt
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.sampling_params import SamplingParams
from prolepsis.engine.client import EngineClient


class EngineArm:
    """Puts its plan into effect before each turn.

    Each round has a tenant scope of its own: nothing cached or learnt in another round, or by another arm, is visible in
    it. Within a round the shared indexes learn from prompt to prompt, as they do in service.
    """

    def __init__(self, arm: Arm, client: EngineClient, params: SamplingParams, seeds: Mapping[str, int]) -> None:
        self.name = arm.name
        self._arm = arm
        self._client = client
        self._params = params
        self._seeds = seeds
        self._scope = f"bench {arm.name}"
        self._asked = 0

    async def begin(self, round_name: str) -> None:
        self._scope = f"bench {self.name} {round_name}"

    async def run(self, prompts: Sequence[EncodedPrompt], concurrency: int) -> list[Outcome]:
        self._client.apply_plan(self._arm.plan)
        return await in_flight([partial(self._one, prompt) for prompt in prompts], concurrency)

    async def _one(self, prompt: EncodedPrompt) -> Outcome:
        answer = await ask(self._client, self._request(prompt))
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
            params=replace(self._params, seed=self._seeds.get(prompt.id, self._params.seed)),
            scope=self._scope,
        )
