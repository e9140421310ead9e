"""Estimates how likely each drafted token is accepted, learned online from committed tokens.

A trial is a drafted token whose parent was committed; a hit, that it was committed too. Every draft is scored against
the tokens that were later committed, whether it was verified, cut or not chosen at all (after HedgeSpec, ICLR 2026): no
label depends on what the window verified, so nothing is censored. A draft stays pending until a committed token leaves
it, it is used up, or its sequence ends.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from math import exp
from operator import mul
from typing import Self

from prolepsis.core.requests import UNCOUNTED_CLASS
from prolepsis.core.stats import AcceptanceState, JudgedDraft
from prolepsis.engine.drafting.draft import ROOT, Draft
from prolepsis.engine.drafting.ledger import Ledger, Origin, origin_of
from prolepsis.engine.drafting.proposer import SequenceView

_HALF_LIFE = 400.0  # trials
_DECAY = 0.5 ** (1.0 / _HALF_LIFE)
_PRIOR_TRIALS = 8.0
_MAX_POSITION = 8  # deeper positions share one estimate
_CERTAIN = 0.998
_BEGUN_TRIALS = 50.0  # that what another engine learned counts for at most, in each place
_MOST_BUCKETS = 128  # of a proposer, in what other engines begin from
_MOST_CLASSES = 256  # traffic classes that are compared with all; in others drafts are as likely as in all
_MOST_LOG_ODDS = 6.0


class _Cell:
    """Decayed counts of one bucket, over all positions and per position, with the rates they give."""

    __slots__ = ("_rates", "hits", "positions", "prior", "trials")

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self.hits = 0.0
        self.trials = 0.0
        self.positions = [[0.0, 0.0] for _ in range(_MAX_POSITION + 1)]  # hits, trials
        self._rates = [-1.0] * (_MAX_POSITION + 1)

    def record(self, position: int, hit: float) -> None:
        self.hits = self.hits * _DECAY + hit
        self.trials = self.trials * _DECAY + 1.0
        here = self.positions[position]
        here[0] = here[0] * _DECAY + hit
        here[1] = here[1] * _DECAY + 1.0
        self._rates = [-1.0] * (_MAX_POSITION + 1)

    @property
    def state(self) -> tuple[float, ...]:
        tried = takewhile(lambda position: self.positions[position][1], range(_MAX_POSITION + 1))
        at = ((self.rate(position), self.positions[position][1]) for position in tried)
        return tuple(round(value, 3) for pair in ((self.overall, self.trials), *at) for value in pair)

    @classmethod
    def begun(cls, state: Sequence[float]) -> Self:
        """Return a cell with the rates of a state, which few trials of its own outweigh."""
        cell = cls(state[0])
        cell.trials = min(_BEGUN_TRIALS, state[1])
        cell.hits = cell.trials * cell.prior
        for here, rate, trials in zip(cell.positions, state[2::2], state[3::2], strict=False):
            here[1] = min(_BEGUN_TRIALS, trials)
            here[0] = rate * (here[1] + _PRIOR_TRIALS) - _PRIOR_TRIALS * cell.prior  # so that `rate` gives it
        return cell

    @property
    def overall(self) -> float:
        return (self.hits + _PRIOR_TRIALS * self.prior) / (self.trials + _PRIOR_TRIALS)

    def rate(self, position: int) -> float:
        rate = self._rates[position]
        if rate < 0.0:
            hits, trials = self.positions[position]
            rate = self._rates[position] = (hits + _PRIOR_TRIALS * self.overall) / (trials + _PRIOR_TRIALS)
        return rate


class _ClassOdds:
    """By how much the odds of a hit differ in one traffic class from what the rates of all classes let expect.

    Logistic regression with the rate's log-odds as offset, a Newton step per trial. It begins at no difference, known
    as if by `_PRIOR_TRIALS` trials: that shrinks a class with few trials to all classes.
    """

    __slots__ = ("_information", "_log_odds", "odds")

    def __init__(self) -> None:
        self.odds = 1.0
        self._log_odds, self._information = 0.0, _PRIOR_TRIALS / 4.0

    def record(self, rate: float, hit: float) -> None:
        expected = rate * self.odds / (1.0 - rate + rate * self.odds)
        self._information = max(_PRIOR_TRIALS / 4.0, self._information * _DECAY + expected * (1.0 - expected))
        step = self._log_odds + (hit - expected) / self._information
        self._log_odds = max(-_MOST_LOG_ODDS, min(_MOST_LOG_ODDS, step))
        self.odds = exp(self._log_odds)


def with_odds(rates: Iterable[float], odds: float) -> list[float]:
    """Return the rates whose odds are `odds` times those of `rates`."""
    return [rate * odds / (1.0 - rate + rate * odds) for rate in rates]


class AcceptanceEstimator:
    """Rates per (proposer, bucket, position), each shrunk to the bucket's, that to a prior.

    The prior of a bucket is the proposer's own estimate if its drafts have one, else its rate over all buckets, else
    `prior`: optimistic, so that a cold start drafts and learns. Once there are several traffic classes, what the
    first tokens of a proposer's drafts show in one of them moves all its rates there.
    """

    def __init__(self, prior: float = 0.6) -> None:
        self._prior = prior
        self._classes: set[str] = set()
        self._odds: dict[tuple[str, str], tuple[_ClassOdds, _ClassOdds]] = {}
        """By proposer and traffic class: of the rates of nodes, and of those before a draft is known."""
        self._pools: defaultdict[str, _Cell] = defaultdict(lambda: _Cell(prior))
        self._cells: dict[str, dict[int, _Cell]] = {}

    def survival(self, proposer: str, length: int, traffic_class: str = "") -> tuple[float, ...]:
        """Return, for each depth, the chance that the likeliest node there and all above it are accepted.

        This is the expectation before a draft, and so its buckets, are known.
        """
        known = self._odds.get((proposer, traffic_class))
        rates = (self._pooled(proposer, depth) for depth in range(length))
        return tuple(accumulate(with_odds(rates, known[1].odds) if known else rates, mul))

    def rates(self, draft: Draft, traffic_class: str = "") -> list[float]:
        """Return the chance of each node to be accepted given that its parent was."""
        cells, parents = self._cells.get(draft.proposer, {}), draft.parents
        buckets = draft.buckets or (draft.bucket,) * len(parents)
        depths: list[int] = []
        rates: list[float] = []
        for i, parent in enumerate(parents):
            depth = 0 if parent == ROOT else depths[parent] + 1
            depths.append(depth)
            cell = cells.get(buckets[i])
            position = depth if depth < _MAX_POSITION else _MAX_POSITION
            rates.append(cell.rate(position) if cell else self._expected(draft, i))
        known = self._odds.get((draft.proposer, traffic_class))
        return with_odds(rates, known[0].odds) if known else rates

    def record(
        self, draft: Draft, node: int, depth: int, *, hit: bool, first: bool = True, traffic_class: str = ""
    ) -> None:
        """Count one trial: the parent of `node` (at `depth`, 0 below the root) was committed; `hit`: so was `node`.

        `first`: it is the likeliest child of its parent.
        """
        if first and not depth and traffic_class and traffic_class != UNCOUNTED_CLASS:
            self._compare(draft, node, hit=hit, traffic_class=traffic_class)
        cells = self._cells.setdefault(draft.proposer, {})
        bucket = draft.bucket_of(node)
        cell = cells.get(bucket)
        if cell is None:
            cell = cells[bucket] = _Cell(self._expected(draft, node))
        cell.record(min(depth, _MAX_POSITION), hit)
        if first:
            self._pools[draft.proposer].record(min(depth, _MAX_POSITION), hit)

    def _compare(self, draft: Draft, node: int, *, hit: bool, traffic_class: str) -> None:
        """Compare a first token with what all classes let expect; one class alone has nothing to be compared with.

        First tokens alone: that is one trial of a draft, not one of each node.
        """
        key = draft.proposer, traffic_class
        if (known := self._odds.get(key)) is None:
            if len(self._classes) < _MOST_CLASSES:
                self._classes.add(traffic_class)
            if len(self._classes) < 2 or traffic_class not in self._classes:
                return
            known = self._odds[key] = _ClassOdds(), _ClassOdds()
        cell = self._cells.get(draft.proposer, {}).get(draft.bucket_of(node))
        known[0].record(cell.rate(0) if cell else self._expected(draft, node), hit)
        known[1].record(self._pooled(draft.proposer, 0), hit)

    def _pooled(self, proposer: str, depth: int) -> float:
        pool = self._pools.get(proposer)
        return pool.rate(min(depth, _MAX_POSITION)) if pool else self._prior

    def forget(self, proposer: str) -> None:
        """Start over with a proposer that was exchanged for another of its name."""
        self._odds = {key: known for key, known in self._odds.items() if key[0] != proposer}
        self._pools.pop(proposer, None)
        self._cells.pop(proposer, None)

    def state(self, proposer: str) -> AcceptanceState | None:
        """Return what is known of a proposer's drafts, of its most tried buckets; None: nothing."""
        if (pool := self._pools.get(proposer)) is None:
            return None
        cells = sorted(self._cells.get(proposer, {}).items(), key=lambda item: -item[1].trials)[:_MOST_BUCKETS]
        return AcceptanceState(pool.state, {bucket: cell.state for bucket, cell in cells})

    def begin_from(self, proposer: str, state: AcceptanceState) -> None:
        """Begin with what another engine learned; what is known of a bucket here already stays."""
        if proposer not in self._pools:
            self._pools[proposer] = _Cell.begun(state.pool)
        begun = {bucket: _Cell.begun(counts) for bucket, counts in state.buckets.items()}
        self._cells[proposer] = begun | self._cells.get(proposer, {})

    def trials(self, proposer: str, bucket: int, position: int) -> tuple[float, float]:
        cell = self._cells.get(proposer, {}).get(bucket)
        hits, trials = cell.positions[position] if cell else (0.0, 0.0)
        return hits, trials

    def _expected(self, draft: Draft, node: int) -> float:
        if (estimate := draft.conditional(node)) is not None:
            return estimate
        pool = self._pools.get(draft.proposer)
        return pool.overall if pool else self._prior


def survivals(draft: Draft, rates: Sequence[float]) -> tuple[float, ...]:
    """Return the survival of each node: its rate, never quite certain, times its parent's."""
    alive: list[float] = []
    for parent, rate in zip(draft.parents, rates, strict=True):
        chance = min(rate, _CERTAIN)
        alive.append(chance if parent == ROOT else chance * alive[parent])
    return tuple(alive)


_MAX_PENDING = 64  # drafts of one sequence
FIRST_JUDGED = 4  # judged drafts of a sequence and proposer that are counted apart (`Scoreboard.commit`)


@dataclass(slots=True)
class _Pending:
    draft: Draft
    origin: Origin
    next_index: int  # of the sequence's token that decides next
    node: int = ROOT
    depth: int = 0


class Scoreboard:
    """Drafts of live sequences that are still being judged."""

    def __init__(self, acceptance: AcceptanceEstimator, ledger: Ledger | None = None) -> None:
        self.acceptance = acceptance
        self.ledger = ledger or Ledger(())
        self._pending: dict[str, list[_Pending]] = {}
        self._first_judged: list[tuple[str, JudgedDraft]] = []  # in this commit
        self._num_judged: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By sequence, by proposer: drafts whose first token was judged, up to `FIRST_JUDGED`."""

    def add(self, sequence: SequenceView, draft: Draft) -> None:
        """Judge `draft`, made for the sequence as it stands now, by the tokens to come."""
        pending = self._pending.setdefault(sequence.key, [])
        pending.append(_Pending(draft, origin_of(sequence), len(sequence.tokens)))
        del pending[:-_MAX_PENDING]

    def commit(self, sequence: SequenceView) -> Sequence[tuple[str, JudgedDraft]]:
        """Judge the sequence's pending drafts by the tokens that were committed since.

        Return the drafts among the first of their proposer for the sequence whose first token was judged now.
        """
        pending = self._pending.get(sequence.key)
        if not pending:
            return ()
        self._pending[sequence.key] = [entry for entry in pending if self._judge(entry, sequence)]
        judged, self._first_judged = self._first_judged, []
        return judged

    def drop(self, sequence: SequenceView) -> None:
        """Forget a sequence that ended; undecided drafts stay uncounted."""
        self._pending.pop(sequence.key, None)
        self._num_judged.pop(sequence.key, None)

    def forget(self, proposer: str) -> None:
        """Forget the drafts of a proposer that was exchanged, and how many of them were judged."""
        for key, pending in self._pending.items():
            self._pending[key] = [entry for entry in pending if entry.draft.proposer != proposer]
        for num_judged in self._num_judged.values():
            num_judged.pop(proposer, None)

    def _judge(self, entry: _Pending, sequence: SequenceView) -> bool:
        """Advance one draft of the sequence over its tokens; return whether it is still undecided."""
        parents, tokens = entry.draft.parents, sequence.tokens
        while entry.next_index < len(tokens):
            follower = self._trials(entry, tokens[entry.next_index])
            if entry.depth == 0:
                proposer, right = entry.draft.proposer, follower is not None
                self.ledger.judge(proposer, entry.origin, right=right)
                num_judged = self._num_judged[sequence.key]
                if num_judged[proposer] < FIRST_JUDGED:
                    num_judged[proposer] += 1
                    self._first_judged.append((proposer, JudgedDraft(right, entry.draft.first_chance)))
            if follower is None or follower not in parents:
                return False
            entry.node, entry.depth, entry.next_index = follower, entry.depth + 1, entry.next_index + 1
        return True

    def _trials(self, entry: _Pending, token: int) -> int | None:
        """Record a trial for each child of the entry's node; return the child that was committed."""
        draft, parents, at, follower = entry.draft, entry.draft.parents, entry.node, None
        first = True
        for node in range(at + 1, len(parents)):
            if parents[node] == at:
                hit = draft.tokens[node] == token
                self.acceptance.record(draft, node, entry.depth, hit=hit, first=first, traffic_class=entry.origin[0])
                first = False
                if hit:
                    follower = node
        return follower
