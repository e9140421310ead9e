"""How an answer is sampled, and how long it may be: what of the model's context a prompt takes and leaves."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.errors import ContextTooLong, InvalidParameter
from prolepsis.core.requests import DEFAULTED, SamplingDefaults, SamplingParams, shaping
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody, GenerationBody

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for completions; a chat answer may fill the context."""
_SEED_BITS = 53
"""Size of a drawn seed: every JSON reader keeps numbers of this size exactly."""
FITTING = -1
"""As number of a prompt's tokens: as many as the context has room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRoom:
    context: int  # most tokens of prompt and answer together
    asked: int | None  # length of the answer that the client asks for
    least: int
    default: int | None  # length where none is asked for; None: all that the prompt leaves
    warn: Callable[[str], None] | None
    """Says that an answer is shortened to the room there is; None: it is refused."""

    @staticmethod
    def of(body: GenerationBody, info: EngineInfo, *, fills: bool, warn: Callable[[str], None] | None) -> "AnswerRoom":
        """Read it from a body; raises `InvalidParameter`. `fills`: an answer may fill the context by default."""
        if isinstance(body, ChatBody):
            old, new = body.max_tokens, body.max_completion_tokens
            if old is not None and new is not None and old != new:
                message = f"max_tokens is {old} and max_completion_tokens is {new}"
                raise InvalidParameter(
                    f"{message}; allowed: one of them, or equal values", param="max_completion_tokens"
                )
            if old == 0 and body.prompt_logprobs is None:
                message = "max_tokens is 0; allowed: 1 or more, or prompt_logprobs with it"
                raise InvalidParameter(message, param="max_tokens")
        return AnswerRoom(
            context=info.max_model_len,
            asked=body.answer_tokens,
            least=body.min_tokens or 0,
            default=None if fills or isinstance(body, ChatBody) else DEFAULT_COMPLETION_TOKENS,
            warn=warn,
        )

    @property
    def longest(self) -> int:
        """The longest answer, while the length of the prompt is not known."""
        return max(self.context, self.least) if self.asked is None else self.asked

    def truncated(self, token_ids: Sequence[int], body: GenerationBody) -> tuple[int, ...]:
        """Return the tokens of a prompt that its body keeps: all, a number, or those that leave room for the answer."""
        number = body.truncate_prompt_tokens
        if number == FITTING:
            number = max(1, self.context - (max(1, self.least) if self.asked is None else self.asked))
        first = 0 if number is None or body.truncation_side == "right" else max(0, len(token_ids) - number)
        return tuple(token_ids[first:] if number is None else token_ids[first : first + number])

    def behind(self, length: int, field: str) -> int:
        """Return how long the answer behind a prompt of `length` tokens may be; raises where both do not fit."""
        if not length:
            raise InvalidParameter(f"{field} has no tokens; allowed: 1 or more", param=field)
        room, least, answer = self.context - length, max(1, self.least), self.asked
        if answer is None and self.default is not None:
            answer = max(least, min(self.default, room))
        elif answer is not None and self.warn is not None and answer > room >= least:
            self.warn(f"max_tokens is {answer}, and the context has less room: the answer may fill it")
            answer = room
        needed = least if answer is None else answer
        if needed > room:
            counted = f"{length + needed} tokens: {length} in {field} and {needed} for the answer"
            raise ContextTooLong.of(self.context, counted, param=field)
        return room if answer is None else answer


def sampling_params(body: GenerationBody, defaults: SamplingDefaults, logprobs: int | None = None) -> SamplingParams:
    """Fill in `defaults` where the body leaves parameters out; `max_tokens` follows when the prompt is tokenised."""
    if body.logprob_token_ids:
        logprobs = logprobs or 0
    given = shaping(defaults, only=DEFAULTED)
    given |= {name: value for name, value in shaping(body).items() if value is not None}
    given["top_k"] = max(0, given["top_k"])
    echoed = logprobs if isinstance(body, CompletionBody) and body.echo else None
    return SamplingParams(
        **given,
        logit_bias=tuple(sorted((body.logit_bias or {}).items())),
        min_tokens=body.min_tokens or 0,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        seed=secrets.randbits(_SEED_BITS) if body.seed is None else body.seed,
        logprobs=logprobs,
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        logprob_token_ids=tuple(body.logprob_token_ids or ()),
        prompt_logprobs=echoed if body.prompt_logprobs is None else body.prompt_logprobs,
    )
