"""Drafts and keyed sampling inside a plain vLLM server, by what each request says. Knows no module of vLLM.

A request says so in `vllm_xargs`: `prolepsis_mode` (on, off, shadow), `prolepsis_depth`, `prolepsis_proposer`, and
`prolepsis_salt`, under which it shares past outputs with others; without a salt it shares none.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, Protocol, get_args
from zlib import crc32

from torch import Tensor

from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams, shaping
from prolepsis.core.stats import ProposerCounts
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.candidate import DraftRequest
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.ledger import origin_of
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.proposer import Proposer, SequenceFields
from prolepsis.engine.drafting.shadow import ShadowDraft
from prolepsis.engine.drafting.verify import SequenceStep, verify_batch
from prolepsis.engine.drafting.window import DraftWindow, StepLoad
from prolepsis.engine.drafting.worth import StepCost
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.sampling.processors import TokenHistory
from prolepsis.engine.sampling.sampler import Sampler

Mode = Literal["on", "off", "shadow"]
MODES: tuple[Mode, ...] = get_args(Mode)
ARGUMENTS = frozenset(f"prolepsis_{name}" for name in ("mode", "depth", "proposer", "salt"))
"""What a request may say of its drafts, in `vllm_xargs`."""
_ENDLESS = 1 << 30


class RequestState(Protocol):
    """A request as vLLM's model runner keeps it."""

    prompt_token_ids: list[int] | None
    output_token_ids: list[int]
    sampling_params: Any


@dataclass(slots=True, kw_only=True)
class ServedSequence(SequenceFields):
    """One request, brought up to its tokens before each use."""

    mode: Mode
    depth: int | None
    proposer: str | None
    history: TokenHistory | None
    draft: Draft | None = None  # the one that was given to vLLM after the last pass
    shadow: ShadowDraft | None = None
    num_committed: int = 0  # tokens that the proposers know

    counts: dict[str, ProposerCounts] = field(default_factory=dict)
    shadow_counts: dict[str, ProposerCounts] = field(default_factory=dict)

    @classmethod
    def of(cls, key: str, state: RequestState, serial: int) -> "ServedSequence":
        """Return the view of a request; a word that is not known counts as not given.

        `serial` keeps requests without a salt apart: their ids may come again.
        """
        given: Mapping[str, Any] = state.sampling_params.extra_args or {}
        prompt = state.prompt_token_ids or []
        params = params_of(state.sampling_params, crc32(key.encode()))
        salt = given.get("prolepsis_salt")
        depth, mode = given.get("prolepsis_depth"), given.get("prolepsis_mode")
        return cls(
            key=key,
            tokens=list(prompt),
            num_prompt_tokens=len(prompt),
            params=params,
            noise_key=noise_key(params.seed, 0),
            cache_salt=f"alone {serial}" if salt is None else f"shared {salt}",
            mode=mode if mode in MODES else "on",
            depth=max(0, depth) if isinstance(depth, int) else None,
            proposer=given.get("prolepsis_proposer"),
            history=TokenHistory(prompt) if params.has_penalties else None,
        )

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    def follow(self, output: Sequence[int]) -> tuple[Draft, Sequence[int]] | None:
        """Take in the output so far; return the draft that was verified since, with its accepted nodes."""
        new = output[self.num_output_tokens :]
        if not new:
            return None
        self.tokens += new
        if self.history is not None:
            self.history.append(new)
        if self.shadow is not None and self.shadow.follow(new):
            counts = self.shadow_counts.setdefault(self.shadow.draft.proposer, ProposerCounts())
            counts.record(self.shadow.draft.depth, len(self.shadow.path))
            self.shadow = None
        draft, self.draft = self.draft, None
        if draft is None:
            return None
        path = draft.follow(new)
        self.counts.setdefault(draft.proposer, ProposerCounts()).record(draft.depth, len(path))
        return draft, path


def params_of(given: Any, fallback_seed: int) -> SamplingParams:
    """Return vLLM's sampling parameters as ours; without a seed the request's own is used."""
    seed = fallback_seed if given.seed is None else given.seed
    return SamplingParams(
        **{
            **shaping(given),
            "temperature": given.temperature if given.temperature >= 1e-5 else 0.0,
            "top_k": max(0, given.top_k),
        },
        max_tokens=_ENDLESS,  # vLLM ends requests itself
        min_tokens=given.min_tokens,
        stop_token_ids=tuple(given.stop_token_ids or ()),
        ignore_eos=given.ignore_eos,
        seed=(seed + 2**63) % 2**64 - 2**63,  # in 64 bits
    )


def is_ours(given: Any) -> bool:
    """Return whether our sampler can serve vLLM's sampling parameters; vLLM's own samples a batch with others."""
    return not (
        given.logprobs is not None
        or given.bad_words
        or given.allowed_token_ids is not None
        or given.logit_bias
        or given.temperature is None
    )


@dataclass(frozen=True, slots=True)
class _DecodePass:
    """A pass of decoding sequences only, from the drafts made for it on."""

    keys: list[str]
    active: frozenset[str]  # those that may draft
    num_context: int
    began: float  # when drafts were asked for
    asked: float  # when they were made


class ServedRequests:
    """The sequences of one worker, with the proposers that draft for them where that pays."""

    def __init__(
        self,
        requests: Callable[[], Mapping[str, RequestState]],
        proposers: Sequence[Proposer],
        sampler: Sampler,
        num_speculative_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`proposers`: of chains. `requests`: those that live, by id."""
        self._requests = requests
        window = DraftWindow(flat_cost(), token_overhead_ms=0.01)
        self._proposers = ProposerSet(proposers, window, AcceptanceEstimator(), sampler.vocab_size, clock)
        self._payback = Payback(self._proposers.explore)
        self._sampler = sampler
        self._plan = SpecPlan(num_speculative_tokens=num_speculative_tokens)
        self._clock = clock
        self._sequences: dict[str, ServedSequence] = {}
        self._serials = count()
        self._step: _DecodePass | None = None
        """The pass that runs, if it computes no prompt."""
        self.counts: dict[str, ProposerCounts] = {}
        """Verified drafts of requests that have ended, by proposer."""
        self.shadow_counts: dict[str, ProposerCounts] = {}

    def sample(
        self,
        keys: Sequence[str],
        drafts: Sequence[Sequence[int]],
        logits: Tensor,  # [sum of 1 + len(draft), vocab] float32
    ) -> list[Sequence[int]]:
        """Return the tokens that each sequence of a batch emits: the keyed pick at each node of its draft."""
        steps, first = [], 0
        for key, tokens in zip(keys, drafts, strict=True):
            sequence = self._sequence(key)
            draft = chain(tuple(tokens), "") if tokens else None
            position = sequence.num_output_tokens
            steps.append(SequenceStep(draft, sequence.params, sequence.noise_key, position, first, sequence.history))
            first += 1 + len(tokens)
        results = verify_batch(steps, logits, self._sampler)
        step, self._step = self._step, None
        if step is not None and keys == step.keys:  # the pass computed these rows only, no prompt
            drafted = [len(tokens) for tokens in drafts]
            emitted = [len(result.tokens) for result in results]
            number, num_drafted = len(step.keys), sum(drafted)
            now = self._clock()
            plain_ms, verifying_ms = self._proposers.predicted_ms(number, num_drafted, step.num_context)
            drafting_ms, ms = 1000.0 * (step.asked - step.began), 1000.0 * (now - step.began)
            cost = StepCost(number, sum(emitted), num_drafted, ms, plain_ms, drafting_ms, verifying_ms)
            figures = zip(step.keys, drafted, emitted, strict=True)
            self._payback.observe(cost, {key: (size, num - 1) for key, size, num in figures if key in step.active})
        return [result.tokens for result in results]

    def propose(self, keys: Sequence[str], is_decoding: Sequence[bool]) -> list[list[int]]:
        """Return a chain for each sequence of a batch, to verify in the next pass."""
        began = self._clock()
        alive = self._requests()
        for key in [key for key in self._sequences if key not in alive]:  # their counts are kept
            sequence = self._sequences.pop(key)
            self._payback.forget(key)
            self._proposers.forget(sequence, len(sequence.tokens) - sequence.num_committed)
            for own, total in ((sequence.counts, self.counts), (sequence.shadow_counts, self.shadow_counts)):
                for name, counts in own.items():
                    total.setdefault(name, ProposerCounts()).add(counts)
        sequences = [self._sequence(key) for key in keys]
        for sequence, is_ready in zip(sequences, is_decoding, strict=True):
            if is_ready:
                num_new, sequence.num_committed = len(sequence.tokens) - sequence.num_committed, len(sequence.tokens)
                self._proposers.judge(sequence)
                self._proposers.commit(sequence, num_new)
        requests = [self._draft_request(*pair) for pair in zip(sequences, is_decoding, strict=True)]
        may_draft = [request.sequence.key for request in requests if request.limit and self._mode(request) == "on"]
        self._proposers.explore.earn(len(keys))
        active = self._payback.begin(may_draft, len(keys)) if may_draft else frozenset()
        context = sum(len(sequence.tokens) for sequence in sequences)
        number = len(keys)
        load = StepLoad(number, context, self._plan.ceiling * number, self._payback.correction(number), number)
        self._draft([request for request in requests if request.limit], active, load)
        is_observed = self._payback.is_due and all(is_decoding)
        self._step = _DecodePass(list(keys), active, context, began, self._clock()) if is_observed else None
        return [[] if sequence.draft is None else list(sequence.draft.tokens) for sequence in sequences]

    def live_counts(self) -> dict[str, dict[str, list[list[int]]]]:
        """Return [drafted, accepted] by position of each live request: verified drafts, and those only compared."""
        return {
            key: {"verified": _by_position(sequence.counts), "shadow": _by_position(sequence.shadow_counts)}
            for key, sequence in self._sequences.items()
        }

    def _draft_request(self, sequence: ServedSequence, is_decoding: bool) -> DraftRequest:
        limit = self._plan.ceiling if sequence.depth is None else min(sequence.depth, self._plan.ceiling)
        named = tuple(name for name in self._proposers.names if name == sequence.proposer) or None
        return DraftRequest(sequence, limit if is_decoding and sequence.shadow is None else 0, named)

    def _mode(self, request: DraftRequest) -> Mode:
        return self._sequences[request.sequence.key].mode

    def _draft(self, requests: Sequence[DraftRequest], active: Collection[str], load: StepLoad) -> None:
        """Give sequences a draft to verify, those in shadow to compare, where it pays."""
        verified = [request for request in requests if request.sequence.key in active]
        for request, choice in zip(verified, self._proposers.propose(verified, self._plan, load), strict=True):
            self._sequences[request.sequence.key].draft = choice.draft
        compared = [request for request in requests if self._mode(request) == "shadow"]
        for request, choice in zip(compared, self._proposers.compare(compared, self._plan, load), strict=True):
            if choice.draft is not None:
                self._sequences[request.sequence.key].shadow = ShadowDraft(choice.draft)

    def _sequence(self, key: str) -> ServedSequence:
        """Return the view of a request, with the tokens that it has by now."""
        state = self._requests()[key]
        sequence = self._sequences.get(key)
        if sequence is None:
            sequence = self._sequences[key] = ServedSequence.of(key, state, next(self._serials))
        verified = sequence.follow(state.output_token_ids)
        if verified is not None:
            self._proposers.observe(*verified, origin_of(sequence))
        return sequence


def _by_position(counts: Mapping[str, ProposerCounts]) -> list[list[int]]:
    total = ProposerCounts()
    for counted in counts.values():
        total.add(counted)
    return total.per_position
