"""The one verification rule: at each node of a draft the target's own keyed pick decides, and equality accepts.

Exact for greedy and for sampling, chains and trees, any proposer and any cut of its draft, since every
emitted token is the pick that plain decoding makes there (Gumbel coupling, Daliri, Musco, Suresh 2024,
arXiv 2408.07978). R: rows of logits, V: vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from prolepsis.core.errors import GrammarFailed
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import ROOT, Draft
from prolepsis.engine.sampling.processors import LogitBias, TokenHistory, is_edited
from prolepsis.engine.sampling.sampler import DraftRows, Sampler, SamplingRow
from prolepsis.engine.text.grammar.matcher import Matcher


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One sequence's part of a step: its draft, if any, and where its logits are."""

    draft: Draft | None
    params: SamplingParams
    key: int  # 64-bit key of the sequence's noise (`engine.sampling.noise.noise_key`)
    position: int
    """Output position of the first token this step emits: the number of output tokens committed so far."""
    first_row: int
    """Row of the logits after the last committed token; those after node i are in row `first_row + 1 + i`."""
    history: TokenHistory | None = None
    """Counts of the tokens in prompt and committed output; needed only for penalties."""
    room: int | None = None
    """Most tokens this step may emit for another reason than `max_tokens` (the context's end); at least 1."""
    matcher: Matcher | None = None
    """The matcher of the sequence's grammar, if it has one, after the last committed token."""
    bias: LogitBias | None = None  # the logit bias of `params`; needed only if there is one

    @property
    def limit(self) -> int:
        left = self.params.max_tokens - self.position
        return left if self.room is None else min(left, self.room)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    tokens: tuple[int, ...]
    """Emitted: the tokens of `path`, then one more of the target's own (recovered, bonus, or the sequence's last)."""
    path: tuple[int, ...]  # accepted draft nodes from the root down; always one fewer than `tokens`
    end_token: int | None = None  # the last emitted token, if it ends the sequence (end of sequence, stop id)
    last_was_drafted: bool = False
    """The sequence ended (end token or limit) on a token that the draft held too: right, though not in `path`."""
    first_row: int = 0
    fault: GrammarFailed | None = None  # the sequence's grammar gave up behind these tokens; there may be none

    @property
    def rows(self) -> tuple[int, ...]:
        """Row of the logits that each emitted token was picked from."""
        return (self.first_row, *(self.first_row + 1 + node for node in self.path))


@dataclass(slots=True)
class Walk:
    """A sequence on its way down its draft, one pick at a time."""

    draft: Draft | None
    ends: frozenset[int] = frozenset()
    limit: int | None = None
    node: int = ROOT
    tokens: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    end_token: int | None = None
    last_was_drafted: bool = False
    fault: GrammarFailed | None = None

    def take(self, token: int) -> bool:
        """Emit the target's `token` after `node`; return whether there is a further node to pick at."""
        assert self.limit is None or len(self.tokens) < self.limit, "no room for a token: the sequence has ended"
        self.tokens.append(token)
        child = None if self.draft is None else self.draft.child(self.node, token)
        if token in self.ends:
            self.end_token = token
        if token in self.ends or len(self.tokens) == self.limit:
            self.last_was_drafted = child is not None
            return False
        if child is None:
            return False
        self.path.append(child)
        self.node = child
        return True

    def result(self, first_row: int = 0) -> VerifyResult:
        path = self.path if self.fault is None else self.path[:-1]  # behind its last node nothing was picked
        found = tuple(self.tokens), tuple(path)
        return VerifyResult(*found, self.end_token, self.last_was_drafted, first_row, self.fault)


def verify(
    draft: Draft | None, pick: Callable[[int], int], ends: frozenset[int] = frozenset(), limit: int | None = None
) -> VerifyResult:
    """Return the emitted tokens; `pick(i)` is the target's token after node i (`ROOT`: the last committed token).

    Only visited nodes are picked at. The walk stops at a token of `ends`, inclusive, and after `limit` tokens.
    """
    walk = Walk(draft, ends, limit)
    while walk.take(pick(walk.node)):
        pass
    return walk.result()


def verify_batch(
    steps: Sequence[SequenceStep],
    logits: Tensor,  # [R, V] float32
    sampler: Sampler,
    argmax: Sequence[int] | None = None,  # [R]: of each row, if it is known
) -> list[VerifyResult]:
    """Return the result of each sequence of a step: of most in one call of the compiled kernel.

    Where logits are edited, and without the kernel, rows are visited level by level, all sequences together.
    """
    ways = [_way(step, logits, sampler) for step in steps]
    if len(set(ways)) == 1:
        return ways[0](steps, logits, sampler, argmax)
    results: dict[int, VerifyResult] = {}
    for way in set(ways):
        chosen = [i for i, other in enumerate(ways) if other is way]
        results.update(zip(chosen, way([steps[i] for i in chosen], logits, sampler, argmax), strict=True))
    return [results[i] for i in range(len(steps))]


_Way = Callable[[Sequence[SequenceStep], Tensor, Sampler, Sequence[int] | None], list[VerifyResult]]


def _way(step: SequenceStep, logits: Tensor, sampler: Sampler) -> _Way:
    """Return the fastest way to verify a sequence's draft; all of them give the same result."""
    if step.matcher is not None or is_edited(step.params, step.position):
        return _verify_by_levels
    if step.params.greedy:
        return _verify_greedy
    return _verify_in_kernel if sampler.has_kernel(logits) else _verify_by_levels


def _verify_greedy(
    steps: Sequence[SequenceStep], logits: Tensor, sampler: Sampler, argmax: Sequence[int] | None
) -> list[VerifyResult]:
    """Without a given `argmax`, one call computes it for all rows: cheaper than level by level."""
    targets = _argmax(logits, steps, sampler) if argmax is None else argmax
    walks = _walks(steps, sampler)
    for step, walk in zip(steps, walks, strict=True):
        while walk.take(targets[step.first_row + 1 + walk.node]):
            pass
    return [walk.result(step.first_row) for step, walk in zip(steps, walks, strict=True)]


def _argmax(logits: Tensor, steps: Sequence[SequenceStep], sampler: Sampler) -> Mapping[int, int]:
    rows: list[int] = []
    for step in steps:
        num_nodes = 0 if step.draft is None else len(step.draft.tokens)
        rows += range(step.first_row, step.first_row + 1 + num_nodes)
    return dict(zip(rows, sampler.argmax(logits, rows), strict=True))


def _verify_in_kernel(
    steps: Sequence[SequenceStep], logits: Tensor, sampler: Sampler, _: Sequence[int] | None
) -> list[VerifyResult]:
    ends = [sampler.ends(step.params) for step in steps]
    walked = sampler.verify(logits, [_draft_rows(*pair) for pair in zip(steps, ends, strict=True)])
    return [
        VerifyResult(tuple(tokens), tuple(path), tokens[-1] if tokens[-1] in ending else None, drafted, step.first_row)
        for step, ending, (tokens, path, drafted) in zip(steps, ends, walked, strict=True)
    ]


def _draft_rows(step: SequenceStep, ends: frozenset[int]) -> DraftRows:
    assert step.limit > 0, "no room for a token: the sequence has ended"
    tokens, parents = (step.draft.tokens, step.draft.parents) if step.draft is not None else ((), ())
    return DraftRows(step.params, step.key, step.position, step.first_row, tokens, parents, ends, step.limit)


def _walks(steps: Sequence[SequenceStep], sampler: Sampler) -> list[Walk]:
    return [Walk(step.draft, sampler.ends(step.params), step.limit) for step in steps]


def _verify_by_levels(
    steps: Sequence[SequenceStep], logits: Tensor, sampler: Sampler, _: Sequence[int] | None
) -> list[VerifyResult]:
    walks = _walks(steps, sampler)
    active = list(zip(steps, walks, strict=True))
    while active:
        rows = [_row(step, walk) for step, walk in active]
        active = [pair for pair in active if pair[1].fault is None]
        asked = [row for row in rows if row is not None]
        picked = sampler.pick(logits, asked, [step.first_row + 1 + walk.node for step, walk in active])
        active = [pair for pair, token in zip(active, picked, strict=True) if pair[1].take(token)]
    return [walk.result(step.first_row) for step, walk in zip(steps, walks, strict=True)]


def _row(step: SequenceStep, walk: Walk) -> SamplingRow | None:
    """Return the row to pick from at the walk's node; None, with a fault in the walk, if its grammar fails."""
    prefix = tuple(walk.tokens)
    allowed = None
    if step.matcher is not None:
        try:
            allowed = step.matcher.mask(prefix)
        except Exception as error:  # contained: one sequence's grammar must not take the step with it
            walk.fault = (
                error if isinstance(error, GrammarFailed) else GrammarFailed("the grammar could not be followed")
            )
            return None
    return SamplingRow(step.params, step.key, step.position + len(prefix), step.history, prefix, allowed, step.bias)
