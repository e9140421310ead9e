"""A tokenizer of characters' bytes and an engine that says what it is told, for tests of the HTTP side."""

from collections.abc import Iterable, Mapping, Sequence

from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.errors import InvalidParameter, ProlepsisError
from prolepsis.core.events import Event, Failed, Finished, FinishReason, TokenLogprobs, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import EffectiveMode, ProposerCounts, RequestStats, TrafficClassCounts
from prolepsis.engine.text.answer_formats.formats import THINK, AnswerFormats
from prolepsis.engine.text.named_tokens import FillMarks
from tests.fake_client import INFO, FakeEngineClient

END = 256


class ByteTokenizer:
    """One token a byte; 256 ends a text. `chat_template` only says what the template would know of."""

    fill_marks: FillMarks | None = None
    special_tokens: Mapping[str, str] = {"eos_token": "<end>"}

    def __init__(self, chat_template: str | None = "roles and text") -> None:
        self.chat_template = chat_template
        knows = "tools" in (chat_template or "")
        self.formats = AnswerFormats(
            reasoning=THINK if THINK.end in (chat_template or "") else None,
            shows_tools=knows,
            shows_calls=knows,
            shows_results=knows,
        )
        self.tools: Sequence[Mapping[str, object]] | None = None
        self.messages: Sequence[Mapping[str, object]] = ()
        self.variables: Mapping[str, object] | None = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        end = "" if skip_special_tokens else "<end>"
        text = bytes(token for token in token_ids if token < END).decode(errors="replace")
        return text + end * (END in token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < END else b"<end>"

    def shows_role(self, role: str) -> bool:
        return role in (self.chat_template or "")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        self.messages, self.tools, self.variables = messages, tools, variables
        if any("refuse me" in str(message["content"]) for message in messages):
            raise InvalidParameter("the template refuses messages", param="messages")
        text = "".join(f"{m['role']}:{m['content']}\n" for m in messages)
        return self.encode(text[:-1] if continue_final_message else text)


class FakeEngine(FakeEngineClient):
    """Answers every request with `text`, `step` tokens at a time; all samples say the same."""

    def __init__(
        self,
        text: str = "Grüße, world! 👋 done",
        *,
        step: int = 3,
        delay_s: float = 0.0,
        hold_after: int | None = None,
        fail_after: int | None = None,
        error: Exception | None = None,
        info: EngineInfo = INFO,
        counts: Sequence[TrafficClassCounts] = (),
    ) -> None:
        """It waits for an abort after `hold_after` steps; `error` comes after `fail_after` steps, or at once."""
        super().__init__(self._say, info)
        self.text, self.step, self.delay_s = text, step, delay_s
        self.hold_after, self.fail_after, self.error = hold_after, fail_after, error
        self.counts = counts

    def _say(self, request: GenerateRequest) -> Iterable[Event | float | Exception]:
        if self.error is not None and self.fail_after is None:
            yield self.error
        tokens, ends = self._answer(request)
        for step, start in enumerate(range(0, len(tokens) or 1, self.step)):
            if step == self.fail_after:
                assert isinstance(self.error, ProlepsisError)
                yield Failed(request.request_id, self.error, self._stats(request, 0))
            if step == self.hold_after:
                return
            yield self.delay_s
            part = tuple(tokens[start : start + self.step])
            last = start + self.step >= len(tokens)
            reason: FinishReason | None = ("stop" if ends else "length") if last else None
            for index in range(request.n):
                scores = None if start or index else self._prompt_logprobs(request)
                logprobs = self._logprobs(request, part)
                yield Tokens(request.request_id, index, part, start, logprobs, reason, prompt_logprobs=scores)
        yield Finished(request.request_id, self._stats(request, len(tokens)))

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

    def _prompt_logprobs(self, request: GenerateRequest) -> tuple[TokenLogprobs, ...] | None:
        num = request.params.prompt_logprobs
        if num is None:
            return None
        top = ((65, -0.5), (66, float("-inf")))
        return tuple(
            TokenLogprobs(-0.125, top[:num], 4) for _ in request.prompt_token_ids[request.params.scored_from :]
        )

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
