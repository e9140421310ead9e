"""Which draft of which proposer each sequence gets in a step: ask, contain, score, choose, cut, learn."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from prolepsis.core.plan import SpecPlan
from prolepsis.core.stats import PlainReason, ProposerCounts, ProposerMemory, count_draft
from prolepsis.spec.acceptance import AcceptanceEstimator
from prolepsis.spec.asking import Asking
from prolepsis.spec.candidate import MERGED, Turn
from prolepsis.spec.containment import ContainedProposer
from prolepsis.spec.cost import CostCurve
from prolepsis.spec.draft import Draft
from prolepsis.spec.effort import Prices
from prolepsis.spec.ledger import Ledger
from prolepsis.spec.proposer import Proposer, SequenceView
from prolepsis.spec.scoring import Scoreboard
from prolepsis.spec.window import Cut, StepLoad, Window

ShadowSpent = tuple[tuple[str, float, float], ...]
"""Proposer, what drafting cost and what verifying would have cost, in tokens that plain decoding emits in that time."""
_FEW = 4  # sequences up to which drafts are made as long as allowed, and all are judged
_SHORT = 4  # nodes of a draft among many sequences, at first


class ProposerSet:
    """All proposers of an engine behind one call. The engine's order in a step:

    drafts = proposers.propose(sequences, limits, plan, load, allowed, forced=forced)
    ... one pass over plain rows and drafts; verify; append the emitted tokens to the sequences ...
    proposers.observe_pass(num_rows, num_context, ms)     # of the whole pass: forward and verification
    proposers.observe(draft, path)                        # per draft that was verified: its accepted nodes
    proposers.commit(sequence, num_new)                     # per sequence that emitted tokens
    proposers.forget(sequence)                              # once, when the sequence ended

    `commit` is also called once with the whole prompt when a sequence starts to decode. A proposer's fault costs drafts
    and is counted in `failures`; nothing here raises for it.
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        window: Window,
        acceptance: AcceptanceEstimator,
        vocab_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.names = tuple(p.name for p in proposers)
        assert len(set(self.names)) == len(self.names), "proposers have different names"
        self.counts = {name: ProposerCounts() for name in self.names}
        """Verified drafts of each proposer."""
        self.plain: list[PlainReason | None] = []
        """For each sequence of the last call: why it got no draft; None where it got one."""
        self.shadow_spent: list[ShadowSpent] = []
        """For each sequence of the last call in shadow: what its draft cost."""
        self.ledger = Ledger(self.names)
        """What each proposer costs and brings, by traffic class."""
        contained = [ContainedProposer(p, vocab_size, clock, self.ledger) for p in proposers]
        self._proposers = sorted(contained, key=lambda p: not p.free)  # whether the others pay depends on free drafts
        self._contain = partial(ContainedProposer, vocab_size=vocab_size, clock=clock, ledger=self.ledger)
        self._taken_out: dict[str, ContainedProposer] = {}
        self._window = window
        self._acceptance = acceptance
        self._board = Scoreboard(acceptance, self.ledger)
        self._asking = [Asking(proposer, acceptance, self._board, self.ledger) for proposer in self._proposers]
        self._paid: Prices | None = None  # of the last step's drafts; None where they were not weighed
        self._num_proposed = 0
        self._kept: dict[str, int] = {}  # nodes of each live sequence's last draft that were worth verifying

    @property
    def failures(self) -> dict[str, int]:
        """Contained faults of each proposer: calls that raised, drafts that were nonsense."""
        return {p.name: p.num_failures for p in self._proposers}

    @property
    def cost(self) -> CostCurve:
        """What a pass takes, as far as it is known by now."""
        return self._window.cost

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent inside each proposer."""
        return {p.name: p.seconds for p in self._proposers}

    def memory(self) -> tuple[ProposerMemory, ...]:
        """Return what each proposer takes beside the target, from any thread."""
        return tuple(proposer.memory() for proposer in self._proposers)

    def exchange(self, name: str, proposer: Proposer | None) -> None:
        """Between two steps, put `proposer` in the place of the one called `name`, or take that out.

        What was learnt of its drafts is forgotten, also of those merged with others'; counters go on.
        """
        assert proposer is None or proposer.name == name, "a proposer is exchanged for one of its name"
        self._taken_out.update({old.name: old for old in self._proposers if old.name == name})
        self._proposers = [other for other in self._proposers if other.name != name]
        self._asking = [asking for asking in self._asking if asking.proposer.name != name]
        for forgotten in (name, MERGED):
            self._acceptance.forget(forgotten)
            self._board.forget(forgotten)
        self.ledger.exchange(name)
        if proposer is not None:
            contained = self._contain(proposer)
            contained.succeed(self._taken_out.pop(name, None))
            assert not contained.free, "a free proposer is asked before the others"
            self._proposers.append(contained)
            self._asking.append(Asking(contained, self._acceptance, self._board, self.ledger))
            self.counts.setdefault(name, ProposerCounts())
        self.names = (*(n for n in self.names if n != name), *([name] if proposer is not None else []))

    def propose(
        self,
        sequences: Sequence[SequenceView],
        limits: Sequence[int],  # most draft nodes of each sequence; 0: none
        plan: SpecPlan,
        load: StepLoad | None = None,
        allowed: Sequence[tuple[str, ...] | None] | None = None,
        *,
        forced: Sequence[bool] | None = None,
    ) -> list[Draft | None]:
        """Return the draft to verify for each decoding sequence, or None.

        `limits` hold what the sequence allows (its own ceiling, room in its context, tokens it may still emit); the
        plan's ceiling is applied here. `load` None: the pass holds just these sequences. `allowed[i]` None: every
        proposer of the plan. `forced[i]`: what is drafted is verified, whether or not the cost curve says that it pays.
        """
        ceiling = _ceiling(plan)
        if ceiling <= 0 or not any(limit > 0 for limit in limits):
            self.plain = ["no_room"] * len(sequences)
            return [None] * len(sequences)
        self._num_proposed += 1
        turns = self._turns(sequences, [min(limit, ceiling) for limit in limits], allowed, plan)
        for turn, must in zip(turns, forced or (), strict=False):
            turn.forced = must
        load = load or _own_load(sequences, ceiling)
        prices = self._paid = self._prices(len(turns), load) if plan.fixed_depth is None else None
        spent_ms = self._contest(turns, plan, prices)
        fixed = plan.fixed_depth is not None
        drafts = self._cut(turns, load, spent_ms, fixed=fixed)
        self.plain = [turn.plain(draft, weighed=not fixed) for turn, draft in zip(turns, drafts, strict=True)]
        return drafts

    def propose_shadow(
        self,
        sequences: Sequence[SequenceView],
        limits: Sequence[int],
        plan: SpecPlan,
        load: StepLoad,
        allowed: Sequence[tuple[str, ...] | None] | None = None,
    ) -> list[Draft | None]:
        """Return the drafts that `propose` would have verified, were these the only sequences of the pass that draft.

        What decides over the drafts of `propose` stays as it was, but that all of these are judged too.
        """
        ceiling = _ceiling(plan)
        if ceiling <= 0 or not any(limit > 0 for limit in limits):
            self.plain, self.shadow_spent = ["no_room"] * len(sequences), [()] * len(sequences)
            return [None] * len(sequences)
        turns = self._turns(sequences, [min(limit, ceiling) for limit in limits], allowed, plan)
        for turn in turns:
            turn.judged = turn.shadow = True
        fixed = plan.fixed_depth is not None
        prices, before = None if fixed else self._prices(len(turns), load), self.seconds
        spent_ms = self._contest(turns, plan, prices)
        if fixed:
            drafts = _within_budget([turn.draft for turn in turns], load.max_draft_tokens)
        else:
            cut = self._keep(turns, load, spent_ms)
            drafts = [_selected(turn, nodes) for turn, nodes in zip(turns, cut.nodes, strict=True)]
        self.plain = [turn.plain(draft, weighed=not fixed) for turn, draft in zip(turns, drafts, strict=True)]
        self.shadow_spent = self._shadow_spent(drafts, before, prices) if prices else [()] * len(drafts)
        return drafts

    def _shadow_spent(
        self, drafts: Sequence[Draft | None], before: Mapping[str, float], prices: Prices
    ) -> list[ShadowSpent]:
        """Return what each draft took of the time of all who were asked, in equal parts, and its rows would have."""
        number = sum(draft is not None for draft in drafts) or 1
        seconds = {name: now - before[name] for name, now in self.seconds.items() if now > before[name]}
        drafting = {name: 1000.0 * spent * prices.ms / number for name, spent in seconds.items()}
        return [_spent(draft, drafting, prices.row) if draft is not None else () for draft in drafts]

    def observe(self, draft: Draft, path: Sequence[int], traffic_class: str | None = None) -> None:
        """Count a verified draft of the last step whose nodes `path`, from the root down, were emitted.

        `slice_name`: whose costs and gains it belongs to; None where it was verified whatever it is worth.
        """
        count_draft(self.counts, draft.credits(path), len(path))
        if traffic_class is not None:
            self.ledger.verify(draft, path, traffic_class, self._paid)

    def observe_pass(self, num_rows: int, num_context: int, ms: float) -> None:
        """Learn what a pass cost: its rows, its cached tokens, its milliseconds."""
        self._window.cost.observe(num_rows, num_context, ms)

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        """Tell every proposer that the last `num_new` tokens are committed, and judge what was proposed for them."""
        self._board.commit(sequence)
        for proposer in self._proposers:
            proposer.commit(sequence, num_new)

    def forget(self, sequence: SequenceView) -> None:
        """Tell every proposer that the sequence ended."""
        self._board.drop(sequence)
        self._kept.pop(sequence.key, None)
        for proposer in self._proposers:
            proposer.forget(sequence)

    def _turns(
        self,
        sequences: Sequence[SequenceView],
        limits: Sequence[int],
        allowed: Sequence[tuple[str, ...] | None] | None,
        plan: SpecPlan,
    ) -> list[Turn]:
        """Return a turn per sequence; with many sequences, drafts start short and grow where they are kept.

        Which sequences are judged in a step goes by turns, never by how they fare: no bias.
        """
        short = len(sequences) > _FEW and plan.fixed_depth is None
        stride = 1 + (len(sequences) - 1) // _FEW
        turns = []
        for i, sequence in enumerate(sequences):
            limit = min(limits[i], _SHORT + 2 * self._kept.get(sequence.key, 0)) if short else limits[i]
            names = allowed[i] if allowed else None
            turns.append(Turn(sequence, limit, names, (self._num_proposed + i) % stride == 0))
        return turns

    def _contest(self, turns: Sequence[Turn], plan: SpecPlan, prices: Prices | None) -> float:
        """Let the proposers of the plan compete for every sequence that may draft; return the ms of costly ones.

        `prices` None: the depth is fixed.
        """
        spent_ms = 0.0
        for asking in self._asking:
            proposer = asking.proposer
            if plan.proposers is not None and proposer.name not in plan.proposers:
                continue
            if not proposer.resting():
                spent_ms += asking.ask(turns, prices)
                continue
            for turn in turns:
                turn.rested |= turn.allows(proposer.name)
        return spent_ms

    def _prices(self, num_plain: int, load: StepLoad) -> Prices:
        """Return what time is worth where all is decoded plainly."""
        pace = self._window.plain_pace(load, num_plain)
        return Prices(self._window.marginal_ms(load) * pace, pace)

    def _cut(self, turns: Sequence[Turn], load: StepLoad, spent_ms: float, *, fixed: bool) -> list[Draft | None]:
        if fixed:
            return _within_budget([turn.draft for turn in turns], load.max_draft_tokens)
        cut = self._keep(turns, load, spent_ms)
        drafts = [turn.draft if turn.forced else _selected(turn, n) for turn, n in zip(turns, cut.nodes, strict=True)]
        return _within_budget(drafts, load.max_draft_tokens) if any(turn.forced for turn in turns) else drafts

    def _keep(self, turns: Sequence[Turn], load: StepLoad, spent_ms: float) -> Cut:
        """Return which nodes are worth verifying, remembering how many for the sequences that may draft."""
        cut = self._window.cut([turn.survivals for turn in turns], load, spent_ms)
        for turn, nodes in zip(turns, cut.nodes, strict=True):
            if turn.limit > 0:
                self._kept[turn.sequence.key] = len(nodes)
        return cut


def _ceiling(plan: SpecPlan) -> int:
    depth = plan.num_speculative_tokens if plan.fixed_depth is None else plan.fixed_depth
    return min(depth, plan.num_speculative_tokens)


def _spent(draft: Draft, drafting: Mapping[str, float], price: float) -> ShadowSpent:
    rows = Counter(draft.sources or [draft.proposer] * len(draft.tokens))
    return tuple((name, drafting.get(name, 0.0), rows[name] * price) for name in sorted(drafting.keys() | rows.keys()))


def _selected(turn: Turn, nodes: list[int]) -> Draft | None:
    if turn.draft is None or not nodes:
        return None
    return turn.draft if len(nodes) == len(turn.draft.tokens) else turn.draft.select(nodes)


def _own_load(sequences: Sequence[SequenceView], ceiling: int) -> StepLoad:
    return StepLoad(len(sequences), sum(len(s.tokens) for s in sequences), ceiling * len(sequences))


def _within_budget(drafts: Sequence[Draft | None], budget: int) -> list[Draft | None]:
    """Return the drafts, the last ones cut where a pass has no room for them."""
    kept: list[Draft | None] = []
    for draft in drafts:
        size = min(len(draft.tokens), budget) if draft else 0
        budget -= size
        kept.append(draft.cut(size) if draft and size else None)
    return kept
