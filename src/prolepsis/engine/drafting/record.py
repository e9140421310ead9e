"""Keeps the drafts made for requests that are recorded, until the answer has judged them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.core.recorded_draft import MAX_RECORDED, RecordedDraft
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import SequenceView


@dataclass(frozen=True, slots=True)
class _Made:
    proposer: str
    start: int
    depth: int
    draft: Draft | None


@dataclass(slots=True)
class _Recorded:
    made: list[_Made] = field(default_factory=list)
    num_made: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProposerCall:
    proposer: str
    num_sequences: int
    depth: int
    seconds: float


class DraftRecords:
    """The drafts of the live sequences that are recorded, by key."""

    def __init__(self) -> None:
        self._sequences: dict[str, _Recorded] = {}
        self.calls: list[ProposerCall] | None = None
        """Calls of proposers, while somebody measures them and empties the list."""

    def begin(self, sequence: SequenceView) -> None:
        self._sequences.setdefault(sequence.key, _Recorded())

    def made(
        self,
        proposer: str,
        sequences: Sequence[SequenceView],
        depths: Sequence[int],
        drafts: Sequence[Draft | None],
        seconds: float,
    ) -> None:
        """Keep what a proposer answered in a call of so many seconds; each line of the others is of one sequence."""
        if self.calls is not None:
            deepest = max((draft.depth for draft in drafts if draft is not None), default=0)
            self.calls.append(ProposerCall(proposer, len(sequences), deepest, seconds))
        if not self._sequences:
            return
        for sequence, depth, draft in zip(sequences, depths, drafts, strict=True):
            recorded = self._sequences.get(sequence.key)
            if recorded is not None and recorded.num_made.get(proposer, 0) < MAX_RECORDED:
                recorded.num_made[proposer] = recorded.num_made.get(proposer, 0) + 1
                recorded.made.append(_Made(proposer, len(sequence.tokens), depth, draft))

    def end(self, sequence: SequenceView, sample: int) -> dict[str, list[RecordedDraft]]:
        recorded, drafts = self._sequences.pop(sequence.key, None), dict[str, list[RecordedDraft]]()
        classes, start = dict[int, int](), -1
        for made in recorded.made if recorded else ():
            if made.start != start:
                classes, start = {}, made.start
            entry = RecordedDraft(sample, start - sequence.num_prompt_tokens, made.depth)
            if (draft := made.draft) is not None:
                entry = entry._replace(
                    classes=tuple([classes.setdefault(token, len(classes)) for token in draft.tokens]),
                    parents=draft.parents,
                    survival=draft.survival,
                    buckets=draft.buckets or (draft.bucket,) * len(draft.tokens),
                    path=draft.follow(sequence.tokens[start:]),
                )
            drafts.setdefault(made.proposer, []).append(entry)
        return drafts
