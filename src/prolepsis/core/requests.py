"""Requests to the engine: prompt, sampling parameters, constraints (compiled by `engine.text.grammar`), speculation."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from prolepsis.core.continuation import Continuation
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.reasons import OffReason

GrammarKind = Literal["json_schema", "regex", "choice", "lark"]

JSON_STYLE: dict[str, bool | str] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON answers are spaced: on one line, as Python's `json.dumps` writes it, so whitespace cannot run away.

It is applied to every `json_schema`. A schema embedded in a lark grammar carries it itself, as "x-guidance".
"""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A language the answer must belong to; equal specs share one compiled grammar."""

    kind: GrammarKind
    source: str
    """json_schema: the schema as JSON; choice: a JSON list of strings; regex and lark: their own text.

    lark is llguidance's dialect, in which `%json {...}` embeds a schema.
    """


MAX_TOP_LOGPROBS = 20
WHOLE_VOCABULARY = -1  # in place of a number of likeliest tokens: all tokens
MAX_LOGPROBS = 2**18
"""Most log-probabilities of a request's prompt, and of its answer where it asks for those of the whole vocabulary."""
MAX_LOGIT_BIASES = 4096
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024  # longest stop string
_LEAST_TOP_P = 1e-6  # the likeliest of a million tokens has at least this probability


class SamplingNumber(NamedTuple):
    """One number among the sampling parameters: every range, default and spelling of it is made of its row."""

    name: str
    least: float
    most: float
    allowed: str
    has_default: bool = False  # an operator may set what a client leaves out
    llamacpp: str | None = None  # its name in llama.cpp's and Ollama's APIs, where it is another


_LEAST = math.ulp(0.0)  # above 0
SAMPLING_TABLE = (
    SamplingNumber("temperature", 0, 2, "0 to 2", has_default=True),
    SamplingNumber("top_p", 0, 1, "0 to 1", has_default=True),
    SamplingNumber("top_k", 0, 2**31 - 1, "0 (off) to 2147483647", has_default=True),
    SamplingNumber("min_p", 0, 1, "0 to 1", has_default=True),
    SamplingNumber("repetition_penalty", _LEAST, 10, "above 0, up to 10", has_default=True, llamacpp="repeat_penalty"),
    SamplingNumber("presence_penalty", -2, 2, "-2 to 2"),
    SamplingNumber("frequency_penalty", -2, 2, "-2 to 2"),
)
SHAPING = tuple(row.name for row in SAMPLING_TABLE)
"""The parameters that shape a distribution; policies have conditions on them."""
DEFAULTED = tuple(row.name for row in SAMPLING_TABLE if row.has_default)
_NUMBERS = (
    *SAMPLING_TABLE,
    SamplingNumber("max_tokens", 0, math.inf, "0 or more"),
    SamplingNumber("min_tokens", 0, math.inf, "0 or more"),
    SamplingNumber("seed", -(2**63), 2**63 - 1, "-2^63 to 2^63 - 1"),
)


def shaping(source: object, *, as_llamacpp: bool = False, only: Collection[str] = SHAPING) -> dict[str, Any]:
    """Return the parameters of `source` that shape a distribution, by name."""
    rows = [row for row in SAMPLING_TABLE if row.name in only]
    return {row.llamacpp or row.name if as_llamacpp else row.name: getattr(source, row.name) for row in rows}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request's sampling; the defaults sample the target's own distribution.

    Order of application, the same for plain decoding and for every node of a draft: logit bias,
    grammar, ban of end-of-sequence below `min_tokens`, repetition, presence and frequency penalties, temperature,
    top-k, top-p, min-p.
    """

    temperature: float = 1.0  # 0 is greedy: the target's argmax, ties broken by the lowest token id
    top_k: int = 0  # keep the k likeliest tokens; 0 keeps all
    top_p: float = 1.0  # 0 keeps the likeliest token only
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    max_tokens: int = 128
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    """Keys the noise: the same seed and prompt give the same tokens. The server draws one where none is given."""
    logprobs: int | None = None
    """None: none; k: log-probability of each emitted token and of the k likeliest, from the target's raw logits."""
    allowed_token_ids: tuple[int, ...] = ()  # the only tokens of the answer; none: all
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens whose log-probabilities stand in place of those of the likeliest."""
    prompt_logprobs: int | None = None  # as `logprobs`, of each token of the prompt but the first
    scored_from: int = 1
    """The first token of the prompt whose log-probability is asked for; those before it may come from the cache."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def nucleus(self) -> float:
        """`top_p` as samplers take it, above 0: the least of them keeps one token of any vocabulary."""
        return max(self.top_p, _LEAST_TOP_P)

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def validate(self, vocab_size: int) -> None:
        """Raise `InvalidParameter` for the first value outside its range, naming what was given and what is allowed."""
        for row in _NUMBERS:
            value = getattr(self, row.name)
            is_fit = math.isfinite(value) and row.least <= value <= row.most
            _check(is_fit, row.name, f"is {value}", row.allowed)
        at_most = f"at most max_tokens ({self.max_tokens})"
        _check(self.min_tokens <= self.max_tokens, "min_tokens", f"is {self.min_tokens}", at_most)
        for name, top in (("top_logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            has_place = top is None or WHOLE_VOCABULARY <= top <= MAX_TOP_LOGPROBS
            _check(has_place, name, f"is {top}", f"0 to {MAX_TOP_LOGPROBS}, or {WHOLE_VOCABULARY} for all tokens")
        tokens = f"0 to {vocab_size - 1}"
        _check_number("logit_bias", "tokens", len(self.logit_bias), MAX_LOGIT_BIASES)
        _check_number("allowed_token_ids", "tokens", len(self.allowed_token_ids), MAX_LOGIT_BIASES)
        for token, bias in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise _refused("logit_bias", f"names token {token}", tokens)
            if not -100.0 <= bias <= 100.0:
                raise _refused("logit_bias", f"of token {token} is {bias}", "-100 to 100")
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            for token in getattr(self, name):
                _check(0 <= token < vocab_size, name, f"names token {token}", tokens)
        _check_number("stop", "strings", len(self.stop), MAX_STOP_STRINGS)
        _check(all(self.stop), "stop", "holds an empty string", "non-empty strings")
        _check_number("stop", "characters in a string", max(map(len, self.stop), default=0), MAX_STOP_CHARACTERS)

    def require_answer(self) -> None:
        """Raise `InvalidParameter` where no token is to be generated."""
        _check(self.max_tokens > 0, "max_tokens", f"is {self.max_tokens}", "1 or more")


def _check(holds: bool, name: str, given: str, allowed: str) -> None:
    if not holds:
        raise _refused(name, given, allowed)


def _check_number(name: str, of: str, number: int, most: int) -> None:
    _check(number <= most, name, f"has {number} {of}", f"at most {most}")


def _refused(name: str, given: str, allowed: str) -> InvalidParameter:
    return InvalidParameter(f"{name} {given}; allowed: {allowed}", param=name)


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values of the sampling parameters that a client leaves out; without arguments, the defaults of OpenAI's API."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    source: str = "openai"
    """Source of the defaults: openai, generation_config.json, gguf (metadata of the file), catalogue (of known models)
    or operator; where the operator gives some, 'operator, others ...'."""

    def describe(self) -> str:
        """Return values and source as text."""
        values = shaping(self, only=DEFAULTED)
        return f"{', '.join(f'{name} {value:g}' for name, value in values.items())} (from {self.source})"

    def validate(self) -> None:
        """Raise `InvalidParameter` for the first value outside its range."""
        SamplingParams(**shaping(self, only=DEFAULTED)).validate(0)


SpecMode = Literal["auto", "off", "always", "shadow"]
AnswerPart = Literal["call", "text"]
"""call: inside a tool call or a form that the answer must have; text: all else."""


BACKGROUND = 5
"""The priority from which a request gets what better ones leave: it has to give its place and its part of a pass."""
UNCOUNTED_CLASS = "health"
"""The traffic class of requests of the server itself: no proposer is counted or judged by them."""


@dataclass(frozen=True, slots=True)
class SpeculationChoice:
    """Speculation that caller and policy allow; the plan and the measured cost decide what takes effect."""

    mode: SpecMode = "auto"
    """off: plain decoding. auto: verify the drafts that pay by the cost curve. always: verify every draft. shadow:
    decode plainly, and make drafts only to compare them with the tokens that are emitted."""
    off_reason: OffReason = "requested_off"
    """In mode off, the reason: the caller, the policy, a rollback, earlier drafts, or a feature flag turned speculation
    off."""
    num_speculative_tokens: int | None = None  # ceiling on drafted tokens a step; None leaves it to the engine
    proposers: tuple[str, ...] | None = None
    """Names of the proposers allowed; None allows every proposer of the plan."""
    rollout_run: str = ""
    """The run of a rollout that it drafts under; what is rolled back stops by this name (`StopRun`)."""
    may_fall_back: bool = False
    """Where it is plain, in shadow or has a ceiling: an engine that drafts, or drafts more, may serve it while no other
    is there (`upstream`)."""
    inside: "tuple[SpeculationChoice, SpeculationChoice] | None" = None
    """What is allowed in place of this within a call, and within text; None: the same in both."""

    def within(self, part: AnswerPart | None) -> "SpeculationChoice":
        """Return what is allowed where the next token belongs to `part` of the answer."""
        return self if self.inside is None or part is None else self.inside[part == "text"]

    @property
    def enabled(self) -> bool:
        """Whether drafts may be made, to verify them or to compare them."""
        return self.mode != "off"


def cache_salt_of(tenant: str, salt: str | None) -> str:
    """Return the `cache_salt` of a tenant's requests with one salt, or without; no two pairs share one."""
    return f"{len(tenant)}:{tenant}:{salt}" if salt else tenant and f"{len(tenant)}:{tenant}"


@dataclass(frozen=True, slots=True)
class LatencyTarget:
    """Longest times of a request, in milliseconds. Drafts and turns of reading help to keep them; none is promised."""

    ms_per_token: float | None = None  # mean of the tokens after the first; so is the next: None sets no target
    first_token_ms: float | None = None  # from its arrival

    def after(self, waited_s: float) -> "LatencyTarget":
        """Return what is left of it after a wait."""
        if self.first_token_ms is None:
            return self
        return replace(self, first_token_ms=max(0.0, self.first_token_ms - 1000.0 * waited_s))


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt and how to continue it, `n` times."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    n: int = 1  # samples of the same prompt; sample i is keyed by (seed, i) and they share the prompt's pages
    priority: int = 0  # lower runs first; equal priorities run in order of arrival
    deadline_s: float | None = None  # seconds after arrival at which the request is failed with `DeadlineExceeded`
    target: LatencyTarget | None = None  # counted from its arrival, as the deadline is; nothing ends where it is missed
    cache_salt: str = ""
    """Made from tenant and caller: nothing that is drafted or cached under one salt is visible under another."""
    traffic_class: str = ""  # the class by which proposers are counted and judged (`core.facts`)
    kill_scopes: frozenset[str] = frozenset()  # scopes by which the kill switch may stop it (`core.kill_scope`)
    prediction_token_ids: tuple[int, ...] = ()  # the caller's predicted output (OpenAI `prediction`), tokenised
    grammar: GrammarSpec | None = None
    """Every emitted token keeps the answer inside this language; None leaves it free."""
    speculation: SpeculationChoice = field(default_factory=SpeculationChoice)
    keeps_rounds: bool = False  # its stats have the figures of its first rounds
    tells_drafts: bool = False  # its `Tokens` say what was proposed
    records_drafts: bool = False  # its stats have its drafts, as a rehearsal replays them
    paced: bool = False
    """Its tokens leave evenly over the time of their steps: its `Tokens` come as soon as their step has ended."""
    emitted: tuple[tuple[int, ...], ...] = ()
    """What was emitted for the same request before, sample by sample; it is then a replay, held against that.

    A replay is decoded plainly. Nothing that others computed is reused for it, and no proposer learns from it.
    """
    continue_from: Continuation | None = None
    """Tokens that another engine emitted for it before it was lost; only later tokens are emitted here."""

    @property
    def is_replay(self) -> bool:
        return bool(self.emitted)

    def validate_size(self, vocab_size: int) -> None:
        """Raise `InvalidParameter` for more log-probabilities, or more samples, than such a request may have."""
        params, of_prompt = self.params, self.params.prompt_logprobs
        if self.n > 1 and not params.max_tokens:
            raise _refused("n", f"is {self.n} where max_tokens is 0", "1")
        if params.logprobs == WHOLE_VOCABULARY and not params.logprob_token_ids:
            number = self.n * params.max_tokens * vocab_size
            given = f"of all {vocab_size} tokens in {self.n * params.max_tokens} places are {number} values"
            _check(number <= MAX_LOGPROBS, "top_logprobs", given, f"{MAX_LOGPROBS}; lower max_tokens")
        if of_prompt is not None:
            each = vocab_size if of_prompt == WHOLE_VOCABULARY else 1 + of_prompt
            number = each * len(self.prompt_token_ids)
            given = f"of {len(self.prompt_token_ids)} tokens are {number} values"
            _check(number <= MAX_LOGPROBS, "prompt_logprobs", given, f"{MAX_LOGPROBS}; lower prompt_logprobs")
