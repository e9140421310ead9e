"""The state of a live request in the engine, also of one that another engine began. Only the scheduler writes it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.continuation import Continuation
from prolepsis.core.engine_client import PromptProgress
from prolepsis.core.errors import ContextTooLong, GrammarFailed, InvalidParameter
from prolepsis.core.events import TokenLogprobs
from prolepsis.core.kill_scope import kill_scope, tenant_scope
from prolepsis.core.requests import BACKGROUND, AnswerPart, GenerateRequest, SamplingParams
from prolepsis.core.stats import RequestStats
from prolepsis.engine.drafting.shadow import ShadowDraft
from prolepsis.engine.drafting.urgency import urgency
from prolepsis.engine.ending import find_ending
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.sampling.processors import LogitBias, TokenHistory
from prolepsis.engine.text.grammar.matcher import CompiledGrammar, Matcher
from prolepsis.engine.text.stream import Detokenizer, StopStrings, TextStream

Rank = tuple[int, float, int, int]
"""Priority, arrival, order of submission, sequence index: lower runs first, the highest is preempted first."""


class SequenceState:
    """One of a request's `n` continuations (a `engine.drafting.proposer.SequenceView`).

    `num_computed` tokens at its front have their KV in `pages`; while decoding that is all but the last.
    """

    def __init__(
        self,
        request: "Request",
        index: int,
        end_ids: frozenset[int],
        text: TextStream | None,
        matcher: Matcher | None,
        *,
        bias: LogitBias | None = None,
    ) -> None:
        source = request.source
        self.request = request
        self.index = index
        self.key = f"{source.request_id}/{index}"
        self.rank: Rank = (source.priority, request.arrival, request.serial, index)
        self.is_spare = False
        self.num_overtaken = 0  # younger sequences of a priority better by one that started while it waited
        self.params: SamplingParams = source.params
        self.cache_salt = source.cache_salt
        self.tenant = tenant_scope(source.kill_scopes).removeprefix(kill_scope("tenant", ""))
        self.traffic_class = source.traffic_class
        self.prediction: Sequence[int] = source.prediction_token_ids
        self.client_draft: ClientDraft | None = None  # the last that its client sent
        self.replays = source.emitted[index] if source.is_replay else None
        """In a replay: the tokens that this sequence is compared with."""
        self.differs_at: int | None = None  # output position at which it left them
        self.noise_key = noise_key(source.params.seed, index)
        self.tokens = list(source.prompt_token_ids)
        self.num_prompt_tokens = len(source.prompt_token_ids)
        self.is_scored = source.params.prompt_logprobs is not None and index == 0
        """It computes the log-probabilities of its prompt: one sample does for all."""
        self.scores: list[TokenLogprobs] = []
        """Those of its prompt from `scored_from` on, as far as it has been read."""
        self.history = TokenHistory(source.prompt_token_ids) if source.params.has_penalties else None
        self.bias = bias  # the logit bias of its parameters, shared by all of the request's sequences
        self.end_ids = end_ids  # tokens that end it: end of sequence, unless ignored, and the caller's stop ids
        self.text = text  # finds the token that completes a stop string, if the request has any
        self.matcher = matcher
        """The state of the request's grammar after `tokens`, if it has one; preemption does not touch it."""
        self.part: AnswerPart | None = None
        """The part of its answer that a step began in; None: what is allowed does not depend on it."""
        self.num_computed = 0
        self.num_published = 0  # pages at the front that were offered to the prefix index
        self.pages: list[int] = []
        self.hashes: list[bytes] = []
        """Hashes of the full pages at the front of `tokens`, as many as were needed so far."""
        self.num_run = 0  # tokens at its end that were emitted without a rejected draft
        self.shadow: ShadowDraft | None = None  # in shadow: the draft that is being compared
        self.urgency = 0  # in the step that begins, by its request's target
        self.running = False
        self.ended = False

    @property
    def is_background(self) -> bool:
        return self.request.source.priority >= BACKGROUND

    @property
    def pause_key(self) -> str:
        """What its pauses are kept by: drafts may pay in one part of an answer and not in the other."""
        return self.key if self.part is None else f"{self.key}/{self.part}"

    @property
    def pause_keys(self) -> tuple[str, ...]:
        """All of them, of every part."""
        return (self.key,) if self.part is None else (f"{self.key}/call", f"{self.key}/text")

    def find_part(self) -> None:
        """Note the part of the answer that its next token belongs to, if what is allowed depends on it.

        Between the marks of a call, and in a form, a grammar lets no answer end; in free text it does.
        """
        if self.request.source.speculation.inside is not None:
            try:
                self.part = "text" if self.matcher is None or self.matcher.is_accepting() else "call"
            except GrammarFailed:  # it fails the request where that samples
                self.part = "text"

    @property
    def num_pending(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_scored(self) -> int:
        """Tokens at its front whose logits are not needed any more for its prompt."""
        return self.params.scored_from - 1 + len(self.scores)

    @property
    def is_scoring(self) -> bool:
        """Log-probabilities of its prompt are missing."""
        return self.is_scored and self.num_scored < self.num_prompt_tokens - 1

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        return tuple(self.scores) if self.is_scored else None

    @property
    def num_reusable(self) -> int:
        """Tokens at its front that need not be computed for it, if others did."""
        if self.replays is not None:
            return 0
        return self.num_scored if self.is_scoring else len(self.tokens) - 1


@dataclass(slots=True)
class Request:
    """A request with its sequences, counts and times (seconds on the engine's clock)."""

    source: GenerateRequest
    arrival: float
    serial: int
    queued_since: float | None
    """Since when it waits for a row: it has none yet, or was preempted; None after its first row from then on."""
    sequences: list[SequenceState] = field(default_factory=list)
    stats: RequestStats = field(default_factory=RequestStats)
    started: bool = False
    begun: bool = False  # a pass had a row of it
    is_large: bool = False  # it has more samples than its share of the places
    forked: bool = False  # the first live sequence computed the prompt, the others share its pages
    num_running: int = 0

    @property
    def request_id(self) -> str:
        return self.source.request_id

    @property
    def live(self) -> list[SequenceState]:
        return [sequence for sequence in self.sequences if not sequence.ended]

    @property
    def progress(self) -> PromptProgress | None:
        """How far the prompt has been read; None: it was read whole."""
        first = self.sequences[0]
        if first.num_output_tokens or first.num_computed >= first.num_prompt_tokens:
            return None
        num_cached = self.stats.num_cached_tokens
        return PromptProgress(self.request_id, first.num_computed, num_cached, first.num_prompt_tokens)

    def urgency(self, now: float) -> int:
        """Return how urgent its tokens after the first are by its target, those of all samples together."""
        target, first_s = self.source.target, self.stats.first_token_s
        if target is None or target.ms_per_token is None or first_s is None:
            return 0
        num_tokens = self.stats.num_output_tokens / self.source.n
        return urgency(1000.0 * (now - self.arrival - first_s), num_tokens, target.ms_per_token)

    def first_token_left(self, now: float) -> float:
        """Return the seconds until its target for the first token; infinite without one, or if it has passed."""
        target = self.source.target
        left_s = (target.first_token_ms or math.inf) / 1000.0 - (now - self.arrival) if target else math.inf
        return left_s if left_s > 0.0 and self.stats.first_token_s is None else math.inf

    @property
    def deadline(self) -> float | None:
        seconds = self.source.deadline_s
        return None if seconds is None else self.arrival + seconds


def open_request(
    source: GenerateRequest,
    arrival: float,
    serial: int,
    eos_token_ids: Sequence[int],
    tokenizer: Detokenizer | None,
    *,
    grammar: CompiledGrammar | None = None,
) -> Request:
    """Return the runtime state of a request just accepted; stop strings need a tokenizer, `grammar` is its own."""
    params = source.params
    request = Request(source, arrival, serial, queued_since=arrival)
    request.stats.num_prompt_tokens = len(source.prompt_token_ids)
    request.stats.traffic_class = source.traffic_class
    end_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos_token_ids))
    assert not params.stop or tokenizer is not None, "stop strings need a tokenizer"
    bias, stop = LogitBias.of(params), StopStrings.of(params.stop)
    for index in range(source.n):
        text = TextStream(tokenizer, stop, min_tokens=params.min_tokens) if stop and tokenizer else None
        matcher = grammar.matcher(ignore_eos=params.ignore_eos) if grammar is not None else None
        request.sequences.append(SequenceState(request, index, end_ids, text, matcher, bias=bias))
    return request


_CONTINUED = "continue_from"


def check_continuation(
    source: GenerateRequest, continuation: Continuation, max_model_len: int, vocab_size: int
) -> None:
    """Raise `UserError` for tokens that cannot be output of the request; reads nothing that changes."""
    if source.is_replay:
        raise _refused("was given with emitted", "one of them")
    if len(continuation.emitted) != source.n:
        raise _refused(f"is of {len(continuation.emitted)} samples", f"of all {source.n}")
    most, length = source.params.max_tokens, len(source.prompt_token_ids)
    for index, tokens in enumerate(continuation.emitted):
        if len(tokens) > most:
            raise _refused(f"has {len(tokens)} tokens of sample {index}", f"at most max_tokens ({most})")
        if length + len(tokens) > max_model_len:
            message = f"{length} in the prompt and {len(tokens)} in {_CONTINUED}"
            raise ContextTooLong.of(max_model_len, message, param=_CONTINUED)
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < vocab_size:
                raise _refused(f"holds token {token}", f"0 to {vocab_size - 1}")


def take_up(request: Request, continuation: Continuation, max_model_len: int, grammar: CompiledGrammar | None) -> None:
    """Give the sequences of a request just opened the tokens that another engine emitted, and end those that these end.

    What follows is the preemption's path: the tokens are computed like a prompt, and the next is sampled at its
    position. Raises `InvalidParameter` for tokens that the engine would not have emitted, and where all has ended.
    """
    for sequence, tokens in zip(request.sequences, continuation.emitted, strict=True):
        sequence.is_scored &= not any(continuation.emitted)  # they came with the first tokens
        try:  # stop strings and grammar take the tokens in
            ending = find_ending(sequence, tokens, max_model_len)
            if sequence.matcher is not None:
                sequence.matcher.advance(tokens)
        except GrammarFailed:
            assert grammar is not None, "a matcher has a grammar"
            num_accepted = grammar.matcher(ignore_eos=sequence.params.ignore_eos).accepted(tokens)
            if num_accepted == len(tokens):
                raise
            wrong = f"holds token {tokens[num_accepted]} as number {num_accepted} of sample {sequence.index}"
            raise _refused(wrong, "what the request's grammar accepts there") from None
        if ending is not None and ending.num_tokens < len(tokens):
            where = f"continues after sample {sequence.index} ended with token {ending.num_tokens - 1}"
            raise _refused(where, "nothing after its end")
        sequence.tokens += tokens
        if sequence.history is not None:
            sequence.history.append(tokens)
        sequence.ended = ending is not None
    if not request.live:
        raise _refused("has ended already, each of its samples", "a sample that has not ended")
    request.stats.num_continued_tokens = sum(map(len, continuation.emitted))


def _refused(given: str, allowed: str) -> InvalidParameter:
    return InvalidParameter(f"{_CONTINUED} {given}; allowed: {allowed}", param=_CONTINUED)
