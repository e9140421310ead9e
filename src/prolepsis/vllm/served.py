"""Drafts and keyed sampling inside a plain vLLM server, by what each request says. Knows no module of vLLM.

A request says so in `vllm_xargs`: `prolepsis_mode` (on, off, shadow), `prolepsis_depth`, `prolepsis_proposer`, and
`prolepsis_salt`, under which it shares past outputs with others; without a salt it shares none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, Protocol, get_args
from zlib import crc32

import structlog
from torch import Tensor

from prolepsis.core.requests import SamplingParams
from prolepsis.core.stats import ProposerCounts
from prolepsis.sampling.noise import noise_key
from prolepsis.sampling.processors import TokenHistory
from prolepsis.sampling.sampler import Sampler
from prolepsis.spec.draft import Draft, chain
from prolepsis.spec.proposer import Proposer
from prolepsis.spec.shadow import ShadowDraft
from prolepsis.spec.verify import SequenceStep, verify_batch

Mode = Literal["on", "off", "shadow"]
MODES: tuple[Mode, ...] = get_args(Mode)
ARGUMENTS = frozenset(f"prolepsis_{name}" for name in ("mode", "depth", "proposer", "salt"))
"""What a request may say of its drafts, in `vllm_xargs`."""
_ENDLESS = 1 << 30
_LEAST_SURVIVAL = 0.05
"""Of a draft token that is verified: nothing here measures what a row of a pass costs."""

log = structlog.get_logger(__name__)


class RequestState(Protocol):
    """A request as vLLM's model runner keeps it."""

    prompt_token_ids: list[int] | None
    output_token_ids: list[int]
    sampling_params: Any


@dataclass(slots=True)
class ServedSequence:
    """A `SequenceView` of one request, brought up to its tokens before each use."""

    key: str
    tokens: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    noise_key: int
    cache_salt: str
    mode: Mode
    depth: int | None
    proposer: str | None
    history: TokenHistory | None
    draft: Draft | None = None
    """The one that was given to vLLM after the last pass."""
    shadow: ShadowDraft | None = None
    pages: Sequence[int] = ()
    prediction: Sequence[int] = ()
    client_draft: None = None
    traffic_class: str = ""
    matcher: None = None
    counts: dict[str, ProposerCounts] = field(default_factory=dict)
    shadow_counts: dict[str, ProposerCounts] = field(default_factory=dict)

    @classmethod
    def of(cls, key: str, state: RequestState, serial: int) -> "ServedSequence":
        """Return the view of a request; a word that is not known counts as not given.

        `serial` tells requests without a salt apart: their ids may come again.
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
            depth=None if depth is None else max(0, int(depth)),
            proposer=given.get("prolepsis_proposer"),
            history=TokenHistory(prompt) if params.has_penalties else None,
        )

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    def follow(self, output: Sequence[int]) -> None:
        """Take in the output so far, and what it says about the last draft."""
        new = output[self.num_output_tokens :]
        if not new:
            return
        self.tokens += new
        if self.history is not None:
            self.history.append(new)
        if self.draft is not None:
            counts = self.counts.setdefault(self.draft.proposer, ProposerCounts())
            counts.record(self.draft.depth, len(self.draft.follow(new)))
            self.draft = None
        if self.shadow is not None and self.shadow.follow(new):
            counts = self.shadow_counts.setdefault(self.shadow.draft.proposer, ProposerCounts())
            counts.record(self.shadow.draft.depth, len(self.shadow.path))
            self.shadow = None


def params_of(given: Any, fallback_seed: int) -> SamplingParams:
    """Return vLLM's sampling parameters as ours; without a seed the request's own is used."""
    return SamplingParams(
        temperature=given.temperature if given.temperature >= 1e-5 else 0.0,
        top_k=max(0, given.top_k),
        top_p=given.top_p,
        min_p=given.min_p,
        repetition_penalty=given.repetition_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        max_tokens=_ENDLESS,  # vLLM ends requests itself
        min_tokens=given.min_tokens,
        stop_token_ids=tuple(given.stop_token_ids or ()),
        ignore_eos=given.ignore_eos,
        seed=(given.seed if given.seed is not None else fallback_seed) % 2**63,
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


class ServedRequests:
    """The sequences of one worker, with the proposers that draft for them."""

    def __init__(
        self,
        requests: Callable[[], Mapping[str, RequestState]],
        proposers: Sequence[Proposer],
        sampler: Sampler,
        num_speculative_tokens: int,
    ) -> None:
        """`proposers`: of chains, the preferred one first. `requests`: those that live, by id."""
        self._requests = requests
        self._proposers = proposers
        self._sampler = sampler
        self._ceiling = num_speculative_tokens
        self._sequences: dict[str, ServedSequence] = {}
        self._serials = count()
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
        return [result.tokens for result in verify_batch(steps, logits, self._sampler)]

    def propose(self, keys: Sequence[str], is_decoding: Sequence[bool]) -> list[list[int]]:
        """Return a chain for each sequence of a batch, to verify in the next pass."""
        self._forget()
        return [
            self._propose(self._sequence(key)) if ready else [] for key, ready in zip(keys, is_decoding, strict=True)
        ]

    def live_counts(self) -> dict[str, dict[str, list[list[int]]]]:
        """Return [drafted, accepted] by position of each live request: verified drafts, and those only compared."""
        return {
            key: {"verified": _by_position(sequence.counts), "shadow": _by_position(sequence.shadow_counts)}
            for key, sequence in self._sequences.items()
        }

    def _propose(self, sequence: ServedSequence) -> list[int]:
        limit = self._ceiling if sequence.depth is None else min(sequence.depth, self._ceiling)
        if sequence.mode == "off" or limit == 0 or sequence.shadow is not None:
            return []
        draft = self._best(sequence, limit)
        if draft is None:
            return []
        if sequence.mode == "shadow":
            sequence.shadow = ShadowDraft(draft)
            return []
        sequence.draft = draft
        return list(draft.tokens)

    def _best(self, sequence: ServedSequence, limit: int) -> Draft | None:
        for proposer in self._proposers:
            if sequence.proposer is not None and proposer.name != sequence.proposer:
                continue
            try:
                [draft] = proposer.propose([sequence], [limit])
            except Exception:  # contained: a proposer costs speed, never a request
                log.exception("proposer_failed", proposer=proposer.name)
                continue
            if draft is not None and (likely := _likely(draft)).tokens:
                return likely
        return None

    def _sequence(self, key: str) -> ServedSequence:
        state = self._requests()[key]
        sequence = self._sequences.get(key)
        if sequence is None:
            sequence = self._sequences[key] = ServedSequence.of(key, state, next(self._serials))
        sequence.follow(state.output_token_ids)
        return sequence

    def _forget(self) -> None:
        """Tell the proposers of requests that are gone, and keep what they counted."""
        alive = self._requests()
        for key in [key for key in self._sequences if key not in alive]:
            sequence = self._sequences.pop(key)
            for proposer in self._proposers:
                proposer.forget(sequence)
            for own, total in ((sequence.counts, self.counts), (sequence.shadow_counts, self.shadow_counts)):
                for name, counts in own.items():
                    total.setdefault(name, ProposerCounts()).add(counts)


def _likely(draft: Draft) -> Draft:
    """Return the front of a chain that is likely enough to be accepted; all of it without estimates."""
    alive = draft.survival
    return draft.cut(next((i for i, chance in enumerate(alive) if chance < _LEAST_SURVIVAL), len(draft.tokens)))


def _by_position(counts: Mapping[str, ProposerCounts]) -> list[list[int]]:
    total = ProposerCounts()
    for one in counts.values():
        total.add(one)
    return total.per_position
