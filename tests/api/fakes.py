"""A tokenizer of characters' bytes and an engine that says what it is told, for tests of the HTTP room."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from prolepsis.core.errors import InvalidParameter, ProlepsisError
from prolepsis.core.events import Aborted, Event, Failed, Finished, TokenLogprobs, Tokens
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import EffectiveMode, ProposerCounts, ProposerMemory, RequestStats, TrafficClassCounts
from prolepsis.engine.client import EngineHealth, EngineInfo, HeadSwapped

END = 256
INFO = EngineInfo(
    model="tiny",
    forward="fake",
    vocab_size=257,
    max_model_len=512,
    fingerprint="fp_test",
    exactness="strict",
    exactness_reason="a fake is exact",
    proposers=("suffix", "prediction"),
)


class ByteTokenizer:
    """One token a byte; 256 ends a text. `chat_template` only says what the template would know of."""

    def __init__(self, chat_template: str | None = "roles and text") -> None:
        self.chat_template = chat_template
        self.tools: Sequence[Mapping[str, object]] | None = None
        self.messages: Sequence[Mapping[str, object]] = ()
        self.variables: Mapping[str, object] | None = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        end = "" if skip_special_tokens else "<end>"
        text = bytes(token for token in token_ids if token < END).decode(errors="replace")
        return text + end * (END in token_ids)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        self.messages, self.tools, self.variables = messages, tools, variables
        if any("refuse me" in str(message["content"]) for message in messages):
            raise InvalidParameter("the template refuses messages", param="messages")
        return self.encode("".join(f"{m['role']}:{m['content']}\n" for m in messages))


@dataclass
class FakeEngine:
    """Answers every request with `text`, `step` tokens at a time; sample i says the same with i steps' delay."""

    text: str = "Grüße, world! 👋 done"
    step: int = 3
    delay_s: float = 0.0
    hold_after: int | None = None
    """Steps after which it says nothing more until it is aborted."""
    fail_after: int | None = None
    error: Exception | None = None
    """What `fail_after` fails with; without `fail_after` it is raised before the first event."""
    ready: bool = True
    alive: bool = True
    info: EngineInfo = INFO
    requests: list[GenerateRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    plans: list[SpecPlan] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    counts: tuple[TrafficClassCounts, ...] = ()
    memory: tuple[ProposerMemory, ...] = ()
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first request; for tests that share the engine's event loop."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all of `hold_after` steps are taken."""
    closed: int = 0
    _aborts: dict[str, asyncio.Event] = field(default_factory=dict)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        self.requests.append(request)
        self.asked.set()
        abort = self._aborts[request.request_id] = asyncio.Event()
        if self.error is not None and self.fail_after is None:
            raise self.error
        tokens, reason = self._answer(request)
        for step, start in enumerate(range(0, len(tokens), self.step)):
            if step == self.fail_after:
                assert isinstance(self.error, ProlepsisError)
                yield Failed(request.request_id, self.error, self._stats(request, 0))
                return
            if step == self.hold_after:
                self.held.set()
                await abort.wait()
            await asyncio.sleep(self.delay_s)
            if abort.is_set():
                yield Aborted(request.request_id, self._stats(request, start))
                return
            part = tuple(tokens[start : start + self.step])
            last = start + self.step >= len(tokens)
            for index in range(request.n):
                yield Tokens(
                    request.request_id,
                    index,
                    part,
                    self._logprobs(request, part),
                    "length" if last and not reason else "stop" if last else None,
                )
        yield Finished(request.request_id, self._stats(request, len(tokens)))

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if request_id in self._aborts:
            self._aborts[request_id].set()

    def apply_plan(self, plan: SpecPlan) -> None:
        self.plans.append(plan)

    def stop_run(self, name: str) -> None:
        self.stopped.append(name)

    async def swap_head(self, name: str) -> HeadSwapped:
        return HeadSwapped(None, name, 0)

    def health(self) -> EngineHealth:
        detail = "serving" if self.ready else "preparing the forward for 8 rows"
        return EngineHealth(self.alive, self.ready, detail, num_running=1, num_waiting=2, kv_usage=0.25)

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return self.memory

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        return self.counts

    async def close(self) -> None:
        self.closed += 1
        for abort in self._aborts.values():
            abort.set()

    def _answer(self, request: GenerateRequest) -> tuple[list[int], bool]:
        """Return the tokens and whether the text ends by itself."""
        tokens = [*self.text.encode(), END]
        return tokens[: request.params.max_tokens], len(tokens) <= request.params.max_tokens

    def _logprobs(self, request: GenerateRequest, part: tuple[int, ...]) -> tuple[TokenLogprobs, ...] | None:
        num = request.params.logprobs
        if num is None:
            return None
        top = ((65, -0.5), (66, float("-inf")), *((67 + i, -2.0) for i in range(20)))
        return tuple(TokenLogprobs(-0.25, top[:num]) for _ in part)

    def _stats(self, request: GenerateRequest, num_tokens: int) -> RequestStats:
        predicted, shadow = bool(request.prediction_token_ids), request.speculation.mode == "shadow"
        drafted = {"suffix": ProposerCounts(3, 6, 3, [[3, 2], [2, 1], [1, 0]])}
        return RequestStats(
            num_prompt_tokens=len(request.prompt_token_ids),
            num_cached_tokens=2,
            num_output_tokens=num_tokens * request.n,
            num_steps=4,
            proposers={} if shadow else drafted,
            shadow=drafted if shadow else {},
            prediction_accepted=5 if predicted else 0,
            prediction_rejected=2 if predicted else 0,
            queue_s=0.1,
            compute_s=0.3,
            first_token_s=0.2,
            total_s=0.5,
            mode=EffectiveMode("shadow", "compared", 3) if shadow else EffectiveMode("on", "speculating", 3),
        )
