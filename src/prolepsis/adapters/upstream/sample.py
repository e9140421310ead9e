"""One sample of an answer as its tokens come from a pool: where it ends, and what is left to ask for."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b, sha256

from prolepsis.adapters.upstream.api import Chunk, UpstreamCall
from prolepsis.core.errors import UpstreamInvalid
from prolepsis.core.events import TokenLogprobs, Tokens
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import ProposerCounts
from prolepsis.engine.ending import find_ending
from prolepsis.engine.text.stream import Detokenizer, StopStrings, TextStream


class UpstreamSample:
    """Finds the end as our own engine does, so that stops, lengths and their reasons mean the same (a
    `GrowingSequence`).

    The engine gets the same stops, so that it ends and reports figures, but what is found here counts.
    """

    def __init__(
        self,
        request: GenerateRequest,
        index: int,
        *,
        eos_token_ids: Sequence[int],
        detokenizer: Detokenizer,
        stop: StopStrings | None,
        max_model_len: int,
    ) -> None:
        params = request.params
        self.params: SamplingParams = replace(params, seed=_seed(params.seed, index))
        self.tokens = list(request.prompt_token_ids)
        self.end_ids = frozenset((*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)))
        self.text = TextStream(detokenizer, stop, min_tokens=params.min_tokens) if stop is not None else None
        self.matcher = None
        """The engine keeps to the grammar."""
        self.ended = False
        self.told_at = 0.0
        """When the reader got its last tokens, by the monotonic clock; 0: it got none."""
        self.drafts: ProposerCounts | None = None
        """What the pools said of drafts."""
        self._request = request
        self._index = index
        self._max_model_len = max_model_len

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self._request.prompt_token_ids)

    @property
    def may_continue(self) -> bool:
        """Whether another pool can go on after its tokens as after a prompt, with the same distribution."""
        params = self.params
        is_counted = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        return not self.num_output_tokens or not (is_counted or self._request.grammar is not None)

    def ask(self, model: str) -> UpstreamCall:
        """Return what is left to ask for."""
        num_output, params = self.num_output_tokens, self.params
        rest = replace(
            params,
            max_tokens=min(params.max_tokens - num_output, self._max_model_len - len(self.tokens)),
            min_tokens=max(0, params.min_tokens - num_output),
        )
        salt = self._request.cache_salt
        hashed = sha256(salt.encode()).hexdigest() if salt else ""
        return UpstreamCall(model, tuple(self.tokens), rest, self._request.grammar, self._request.priority, hashed)

    def take(self, chunk: Chunk) -> Tokens | None:
        """Return the event of a chunk, None if it adds nothing.

        Raises `UpstreamInvalid` where it lacks log-probabilities that were asked for.
        """
        if chunk.drafts is not None:
            self.drafts = self.drafts or ProposerCounts()
            self.drafts.add(chunk.drafts)
        if self.ended or not (chunk.token_ids or chunk.finish):
            return None
        ending = find_ending(self, chunk.token_ids, self._max_model_len)
        token_ids = chunk.token_ids if ending is None else chunk.token_ids[: ending.num_tokens]
        event = Tokens(
            self._request.request_id,
            self._index,
            token_ids,
            position=self.num_output_tokens,
            logprobs=self._logprobs(chunk, len(token_ids)),
            finish_reason=chunk.finish if ending is None else ending.reason,
            stop_reason=None if ending is None else ending.stop_reason,
        )
        self.tokens += token_ids
        self.ended = event.finish_reason is not None
        return event

    def _logprobs(self, chunk: Chunk, num_tokens: int) -> tuple[TokenLogprobs, ...] | None:
        num = self.params.logprobs
        if num is None:
            return None
        logprobs = chunk.logprobs or ()
        if len(logprobs) != len(chunk.token_ids):
            raise UpstreamInvalid(
                f"the upstream engine says {len(logprobs)} log-probabilities of {len(chunk.token_ids)} tokens"
            )
        return tuple(replace(entry, top=entry.top[:num]) for entry in logprobs[:num_tokens])


def _seed(seed: int, index: int) -> int:
    """Return the seed of a sample, so that samples differ and the first one has the request's."""
    if index == 0:
        return seed
    return int.from_bytes(blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()) >> 1
