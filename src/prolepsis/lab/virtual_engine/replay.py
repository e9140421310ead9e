"""The replaced parts of a rehearsed engine: a pass that only takes time, a verifier and proposers that know the end."""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.drafting.draft import ROOT, Draft
from prolepsis.engine.drafting.proposer import HiddenStates, Proposer, SequenceView
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from prolepsis.lab.virtual_engine.machine import Machine, PassWork, ProposerCost, VirtualClock, work_of

_NOTHING = torch.empty(0)
VOCAB_SIZE = 1 << 32
"""Of the ids that stand for tokens: the prefix index stores 32 bits of each."""
_UNKNOWN = 1 << 31
_WRONG = VOCAB_SIZE - (1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """It has no text: ids that stand for its tokens are made of the blocks, so that equal prefixes are found again."""

    number: int  # its place in the trace, from 0
    num_prompt_tokens: int
    num_output_tokens: int
    blocks: tuple[int, ...] = ()
    """Of prompt and answer, as far as they are known: two blocks with equal numbers end equal texts."""
    block_size: int = PAGE_SIZE  # tokens
    scope: str = ""  # requests of different scopes share no prefix
    traffic_class: str = ""
    drafts: Mapping[str, Sequence[RecordedDraft]] = field(default_factory=dict)  # by proposer, in order

    def tokens(self) -> list[int]:
        """Return ids that stand for prompt and answer."""
        length = self.num_prompt_tokens + self.num_output_tokens
        known = [block * self.block_size + i for block in self.blocks for i in range(self.block_size)][:length]
        return known + [_UNKNOWN + self.number] * (length - len(known))

    def request(self, choice: SpeculationChoice | None = None) -> GenerateRequest:
        """Return what is asked of the engine."""
        return GenerateRequest(
            request_id=str(self.number),
            prompt_token_ids=tuple(self.tokens()[: self.num_prompt_tokens]),
            params=SamplingParams(temperature=0.0, max_tokens=self.num_output_tokens, ignore_eos=True),
            cache_salt=self.scope,
            traffic_class=self.traffic_class,
            speculation=choice or SpeculationChoice(),
        )


def wrong_token(number: int) -> int:
    """Return an id that no text has, for drafted tokens that the answer does not follow."""
    return _WRONG + number


@dataclass(slots=True)
class _Answer:
    tokens: Sequence[int]  # of prompt and answer
    drafts: Mapping[str, Sequence[RecordedDraft]]


class KnownRequests:
    """The requests that run, by the key of their sequence."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}

    def begin(self, request: TracedRequest) -> None:
        self._answers[f"{request.number}/0"] = _Answer(request.tokens(), request.drafts)

    def end(self, number: str) -> None:
        del self._answers[f"{number}/0"]

    def after(self, sequence: SequenceView, most: int) -> Sequence[int]:
        """Return the tokens that the target will say next, at most so many."""
        start = len(sequence.tokens)
        return self._answers[sequence.key].tokens[start : start + most]

    def may_ask(self, sequence: SequenceView, proposer: str) -> bool:
        """Return whether a proposer was asked for a draft of the request; also if it is not known, as none was."""
        drafts = self._answers[sequence.key].drafts
        return not drafts or proposer in drafts

    def draft(self, sequence: SequenceView, proposer: str) -> RecordedDraft | None:
        """Return what a proposer answered here when it was recorded, or at the last position before."""
        drafts = self._answers[sequence.key].drafts.get(proposer, ())
        position = len(sequence.tokens) - sequence.num_prompt_tokens
        place = bisect_right(drafts, position, key=lambda draft: draft.position)
        return drafts[place - 1] if place else None


class TimedPass:
    """A `PassRunner` that computes nothing."""

    def __init__(self, machine: Machine, clock: VirtualClock, chance: random.Random) -> None:
        self.most = (0, 0)  # tokens and sequences of a pass
        self._machine = machine
        self._clock = clock
        self._chance = chance
        self._work: PassWork | None = None
        self._ended = clock()

    def forward(self, rows: Sequence[Row], aux_layers: tuple[int, ...] = ()) -> Computed:
        self._work = work_of(rows, aux_layers, self._clock() - self._ended)
        self.most = (max(self.most[0], self._work.num_tokens), max(self.most[1], self._work.num_sequences))
        self._clock.advance(self._machine.pass_ms(self._work, self._chance) / 1000.0)
        return Computed(_NOTHING, features=_NOTHING.new_empty(self._work.num_tokens, 0) if aux_layers else None)

    def compact(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        """Take the time of a step outside its pass."""
        assert self._work is not None, "after the pass"
        self._clock.advance(self._machine.host_ms(self._work) / 1000.0)
        self._ended = self._clock()


class KnownAnswers:
    """A `StepVerifier`: the target says what it said."""

    def __init__(self, answers: KnownRequests) -> None:
        self._answers = answers

    def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        return [self._sampled(row) if row.samples_next else None for row in rows]

    def _sampled(self, row: Row) -> SampledTokens:
        after = self._answers.after(row.sequence, row.num_scheduled_tokens + 1)
        path = row.draft.follow(after[:-1]) if row.draft is not None else ()
        return SampledTokens(tuple(after[: len(path) + 1]), path)


class RecordedProposer(Proposer):
    """Drafts as a proposer did when it was recorded.

    A draft made elsewhere in the answer stands for one that was not recorded: the last one before. A proposer that is
    free copies, so its draft goes on from there; another one's follows the answer as far as that one did.
    """

    def __init__(self, name: str, cost: ProposerCost, answers: KnownRequests, clock: VirtualClock) -> None:
        self.name = name
        self.free = cost.free
        self.one_pass = cost.one_pass
        self.aux_layers = (0,) if cost.takes_states else ()
        self.counts: Counter[str] = Counter()
        """Drafts that were "exact", made where they were recorded, or "moved", and those that were "cut" by the depth
        that had been asked for, so that it is not known how much further they would have gone."""
        self._cost = cost
        self._answers = answers
        self._clock = clock

    def serves(self, sequence: SequenceView) -> bool:
        """A free proposer is asked whenever another is, or never; what others would say is not known."""
        return not self.free or self._answers.may_ask(sequence, self.name)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return self.propose_trees(sequences, limits, limits, 0.0)

    def propose_trees(
        self,
        sequences: Sequence[SequenceView],
        depths: Sequence[int],
        limits: Sequence[int],
        threshold: float,
    ) -> list[Draft | None]:
        drafts = [self._draft(*given, threshold) for given in zip(sequences, depths, limits, strict=True)]
        self._clock.advance(self._cost.ms(len(sequences), max(depths, default=0)) / 1000.0)
        return drafts

    def take(self, states: Sequence[HiddenStates]) -> None:
        """Take the time of it."""
        num_tokens = sum(len(state.tokens) for state in states)
        self._clock.advance((self._cost.states_ms + self._cost.state_ms * num_tokens) / 1000.0)

    def _draft(self, sequence: SequenceView, depth: int, limit: int, threshold: float) -> Draft | None:
        recorded = self._answers.draft(sequence, self.name)
        if recorded is None or not recorded.parents:
            return None
        offset = len(sequence.tokens) - sequence.num_prompt_tokens - recorded.position
        self.counts["exact" if offset == 0 else "moved"] += 1
        self.counts["cut"] += depth > recorded.depth == len(recorded.path)
        after = self._answers.after(sequence, len(recorded.path))
        if offset and self.free:  # it copies: what it would say here is what it said there, without what was said since
            said = sequence.tokens[-offset:]
            draft = _restored(recorded, self.name, [*said, *after]).after(said)
        else:
            draft = _restored(recorded, self.name, after)
        if draft is None or not draft.tokens:
            return None
        return _as_asked(draft, depth, threshold).likeliest(limit)


def _as_asked(draft: Draft, depth: int, threshold: float) -> Draft:
    """Return the levels that were asked for, below nodes that survive with more than the threshold."""
    depths, alive = draft.depths(), draft.survival
    return draft.select(
        [
            node
            for node, parent in enumerate(draft.parents)
            if depths[node] <= depth and (parent == ROOT or not alive or alive[parent] > threshold)
        ]
    )


def _restored(recorded: RecordedDraft, proposer: str, after: Sequence[int]) -> Draft:
    """Return a draft of the recorded shape whose path has the answer's tokens, and no other node has."""
    right = dict(zip(recorded.path, after, strict=False))
    kept = list(_known(recorded, right))
    draft = Draft(
        tuple(right.get(node, wrong_token(recorded.classes[node])) for node in range(len(recorded.parents))),
        recorded.parents,
        proposer,
        recorded.survival,
        buckets=recorded.buckets,
    )
    return draft.select(kept)


def _known(recorded: RecordedDraft, right: Mapping[int, int]) -> Iterator[int]:
    """Yield the nodes but those of the path, and below them, for which the answer has no token left."""
    gone = set(recorded.path) - right.keys()
    for node, parent in enumerate(recorded.parents):
        if node in gone or (parent != ROOT and parent in gone):
            gone.add(node)
        else:
            yield node
