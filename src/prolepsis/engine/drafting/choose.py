"""Chooses the draft of each sequence in a step: ask the proposers, score and merge their drafts, cut, learn."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from prolepsis.core.config import MERGED
from prolepsis.core.messages import SetCorpora
from prolepsis.core.plan import SpecPlan
from prolepsis.core.reasons import PlainReason
from prolepsis.core.stats import JudgedDraft, ProposerCounts, ProposerMemory, count_draft
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator, Scoreboard
from prolepsis.engine.drafting.call_watch import CallWatch, WatchedCall
from prolepsis.engine.drafting.candidate import DraftCandidate, DraftRequest, levels
from prolepsis.engine.drafting.containment import ContainedProposer
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.effort import RETRY_DEPTH, Effort, ExpectedDraft, MarginalCost
from prolepsis.engine.drafting.explore import Explore
from prolepsis.engine.drafting.ledger import Ledger, Origin, origin_of
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.record import DraftRecords
from prolepsis.engine.drafting.window import DraftWindow, StepLoad

ShadowCost = tuple[tuple[str, float, float], ...]
"""Proposer, what drafting cost and what verifying would cost, in tokens that plain decoding emits in that time."""
_FEW = 4  # sequences up to which drafts are made as long as allowed, and all are judged
_SHORT = 4  # nodes of a draft among many sequences, at first
_LEAST_RATE = 0.3  # below, a node's children are not expected to survive even less often


@dataclass(frozen=True, slots=True)
class ChosenDraft:
    """The draft of one sequence, or why it has none."""

    draft: Draft | None
    plain: PlainReason | None
    shadow_cost: ShadowCost = ()


_NO_CAPACITY = ChosenDraft(None, "no_capacity")


class ProposerSet:
    """All proposers of an engine behind one call. The engine's order in a step:

    chosen = proposers.propose(requests, plan, load)
    ... one pass over plain rows and drafts; verify; append the emitted tokens to the sequences ...
    proposers.observe(draft, path)       # per draft that was verified: its accepted nodes
    proposers.judge(sequence)            # per sequence that emitted tokens, then
    proposers.commit(sequence, num_new)
    proposers.forget(sequence)           # once, when the sequence ended

    `commit` is also called once with the whole prompt when a sequence starts to decode. A proposer's fault costs drafts
    and is counted in `failures`; nothing here raises for it.
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        window: DraftWindow,
        acceptance: AcceptanceEstimator,
        vocab_size: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        watch: CallWatch | None = None,
    ) -> None:
        """`watch`: what bounds the calls of proposers; None: nothing does."""
        self.watch = watch or CallWatch()
        self.explore = Explore()
        """The budget of calls that are not expected to pay; the engine's, so that `Payback` takes from it too."""
        self.names = tuple(proposer.name for proposer in proposers)
        assert len(set(self.names)) == len(self.names), "proposers have different names"
        self.counts = {name: ProposerCounts() for name in self.names}
        self.ledger = Ledger(self.names)
        self.records = DraftRecords()
        self.contained: list[ContainedProposer] = []
        """The proposers in the order in which they are asked: free ones first, as they decide whether others pay."""
        self._efforts: dict[str, Effort] = {}  # of the costly ones
        self._contain = partial(
            ContainedProposer, vocab_size=vocab_size, clock=clock, ledger=self.ledger, watch=self.watch
        )
        self._window = window
        self.acceptance = acceptance
        self._board = Scoreboard(acceptance, self.ledger)
        self._removed: dict[str, ContainedProposer] = {}
        self._notifications: deque[Callable[[], None]] = deque()
        """Calls of `commit` or `forget` that are still to be made."""
        self._paid: MarginalCost | None = None  # of the last step's drafts; None where they were not weighed
        self._num_proposed = 0
        self._kept: dict[str, int] = {}  # nodes of each live sequence's last draft that were worth verifying
        for proposer in sorted(proposers, key=lambda proposer: not proposer.free):
            self._add(self._contain(proposer))

    def _add(self, proposer: ContainedProposer) -> None:
        self.contained.append(proposer)
        if not proposer.free:
            self._efforts[proposer.name] = Effort(self.explore, one_pass=proposer.one_pass)

    @property
    def failures(self) -> dict[str, int]:
        """Contained faults of each proposer: calls that raised, drafts that were nonsense."""
        return {proposer.name: proposer.num_failures for proposer in self.contained}

    @property
    def seconds(self) -> dict[str, float]:
        return {proposer.name: proposer.seconds for proposer in self.contained}

    @property
    def cost(self) -> CostCurve:
        return self._window.cost

    def lose(self, call: WatchedCall) -> None:
        """Do without the proposer of an overdue call until it comes back; notify the others of what they missed."""
        for proposer in self.contained:
            if proposer is call.proposer:
                proposer.lose(call)
        self._notify()

    def memory(self) -> tuple[ProposerMemory, ...]:
        """Return the memory that each proposer takes besides the target's, from any thread."""
        return tuple(proposer.memory() for proposer in self.contained)

    def exchange(self, name: str, proposer: Proposer | None) -> None:
        """Between two steps, replace the proposer called `name` by `proposer`, or remove it.

        The estimates of its drafts, also of those merged with others', start over; its counters continue.
        """
        assert proposer is None or proposer.name == name, "a proposer is exchanged for one of its name"
        self._removed.update({old.name: old for old in self.contained if old.name == name})
        self.contained = [known for known in self.contained if known.name != name]
        for forgotten in (name, MERGED):
            self.acceptance.forget(forgotten)
            self._board.forget(forgotten)
        self.ledger.exchange(name)
        self._kept.clear()
        self.names = tuple(kept for kept in self.names if kept != name)
        if proposer is not None:
            contained = self._contain(proposer)
            assert not contained.free, "a free proposer is asked before the others"
            if (before := self._removed.pop(name, None)) is not None:
                contained.num_failures, contained.seconds = before.num_failures, before.seconds
            self._add(contained)
            self.counts.setdefault(name, ProposerCounts())
            self.names += (name,)

    def propose(
        self, requests: Sequence[DraftRequest], plan: SpecPlan, load: StepLoad | None = None
    ) -> list[ChosenDraft]:
        """Return the draft to verify for each request, or why it has none.

        Which sequences are judged in a step rotates and never depends on their drafts, so that it adds no bias.
        `load` None: the pass holds just these sequences.
        """
        self._num_proposed += 1
        stride = 1 + (len(requests) - 1) // _FEW
        candidates = [
            DraftCandidate(request, limit, (self._num_proposed + i) % stride == 0, is_counted=not request.always_verify)
            for i, (request, limit) in enumerate(zip(requests, self._limits(requests, plan), strict=True))
        ]
        load = load or _own_load(requests)
        self._paid = self._costs(requests, load, plan)
        return self._chosen(candidates, plan, load, self._paid)

    def compare(
        self, requests: Sequence[DraftRequest], plan: SpecPlan, load: StepLoad | None = None
    ) -> list[ChosenDraft]:
        """Return the drafts that would be verified if these were the only sequences of the pass that draft.

        They are only compared with the emitted tokens, and all of them are judged; drafts that are verified are chosen
        as before.
        """
        candidates = [
            DraftCandidate(request, limit, judged=True, is_counted=False)
            for request, limit in zip(requests, self._limits(requests, plan), strict=True)
        ]
        load, before = load or _own_load(requests), self.seconds
        costs = self._costs(requests, load, plan)
        chosen = self._chosen(candidates, plan, load, costs)
        return chosen if costs is None else self._with_costs(chosen, before, costs)

    def observe(self, draft: Draft, path: Sequence[int], origin: Origin | None = None) -> None:
        """Count a verified draft of the last step whose nodes `path`, from the root down, were emitted.

        `origin`: the class and tenant that its cost and gain count for; None if it was verified at any cost.
        """
        count_draft(self.counts, draft.credits(path), len(path))
        if origin is not None:
            self.ledger.verify(draft, path, origin, self._paid)

    def predicted_ms(self, num_plain: int, num_drafted: int, num_context: int) -> tuple[float, float]:
        """Return the milliseconds predicted of a step without drafts, and of what so many draft tokens add to it."""
        load = StepLoad(num_plain, num_context, num_drafted)
        return self._window.plain_ms(load, num_plain), self._window.added_ms(load, num_drafted) if num_drafted else 0.0

    def judge(self, sequence: SequenceView) -> Sequence[tuple[str, JudgedDraft]]:
        """Judge the drafts made for the sequence by its tokens.

        Return those among the first judged drafts of their proposer for the sequence (`Scoreboard.commit`).
        """
        return [(name, draft) for name, draft in self._board.commit(sequence) if name != MERGED]

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        """Notify every proposer that the last `num_new` tokens are committed."""
        learning = (proposer for proposer in self.contained if proposer.learns)
        self._notifications += [partial(proposer.commit, sequence, num_new) for proposer in learning]
        self._notify()

    def forget(self, sequence: SequenceView, num_new: int = 0) -> None:
        """Notify every proposer of the last `num_new` tokens of a sequence, and of its end."""
        self._board.drop(sequence)
        self._kept.pop(sequence.key, None)
        learning = (proposer for proposer in self.contained if proposer.learns and num_new)
        self._notifications += [partial(proposer.commit, sequence, num_new) for proposer in learning]
        self._notifications += [partial(proposer.forget, sequence) for proposer in self.contained]
        self._notify()

    def take_corpora(self, message: SetCorpora) -> None:
        for proposer in self.contained:
            proposer.take_corpora(message)

    def close(self) -> None:
        for proposer in self.contained:
            proposer.close()

    def _notify(self) -> None:
        """Make the calls that are left, each once: a thread whose call is overdue leaves those after it (`lose`)."""
        while self._notifications:
            self._notifications.popleft()()

    def _limits(self, requests: Sequence[DraftRequest], plan: SpecPlan) -> list[int]:
        """Return the most nodes of each draft; among many, drafts start short and grow where they are kept."""
        if len(requests) <= _FEW or plan.fixed_depth is not None:
            return [request.limit for request in requests]
        return [min(request.limit, _SHORT + 2 * self._kept.get(request.sequence.key, 0)) for request in requests]

    def _costs(self, requests: Sequence[DraftRequest], load: StepLoad, plan: SpecPlan) -> MarginalCost | None:
        """Return the cost of the step's time if all is decoded plainly; None if drafts are not weighed by it."""
        if plan.fixed_depth is not None:
            return None
        pace = self._window.plain_pace(load, max(load.num_sequences, len(requests)))
        return MarginalCost(self._window.marginal_ms(load) * pace, pace)

    def _chosen(
        self, candidates: Sequence[DraftCandidate], plan: SpecPlan, load: StepLoad, costs: MarginalCost | None
    ) -> list[ChosenDraft]:
        """Let the proposers of the plan compete; return the best draft of each candidate.

        `costs` None: whole drafts, as far as all fit the pass.
        """
        if not any(candidate.limit > 0 for candidate in candidates):
            return [_NO_CAPACITY] * len(candidates)
        spent_ms = 0.0
        for proposer in self.contained:
            if plan.proposers is not None and proposer.name not in plan.proposers:
                continue
            is_out = proposer.backs_off()
            if not is_out and not proposer.is_lent:
                spent_ms += self._draft(proposer, candidates, costs)
                continue
            for candidate in candidates:
                candidate.is_lent |= proposer.is_lent and candidate.allows(proposer.name)
                candidate.in_backoff |= is_out and candidate.allows(proposer.name)
        drafts = [candidate.draft for candidate in candidates]
        if costs is not None:
            drafts = self._cut(candidates, load, spent_ms)
        chosen, room = list[ChosenDraft](), load.max_draft_tokens
        for candidate, draft in zip(candidates, drafts, strict=True):
            size = min(len(draft.tokens), room) if draft else 0
            room -= size
            fitting = draft.cut(size) if draft and size else None
            chosen.append(ChosenDraft(fitting, candidate.plain(fitting, weighed=costs is not None)))
        return chosen

    def _cut(self, candidates: Sequence[DraftCandidate], load: StepLoad, spent_ms: float) -> list[Draft | None]:
        """Return the part of each best draft that pays, or all of it where it is verified in any case."""
        urgencies = [candidate.request.urgency for candidate in candidates]
        cut = self._window.cut([candidate.survivals for candidate in candidates], load, spent_ms, urgencies)
        for candidate, nodes in zip(candidates, cut.nodes, strict=True):
            if candidate.limit > 0:
                self._kept[candidate.sequence.key] = len(nodes)
        return [
            candidate.draft if candidate.request.always_verify else candidate.selected(nodes)
            for candidate, nodes in zip(candidates, cut.nodes, strict=True)
        ]

    def _with_costs(
        self, chosen: Sequence[ChosenDraft], before: Mapping[str, float], costs: MarginalCost
    ) -> list[ChosenDraft]:
        """Return drafts with each one's equal part of all proposers' time, and what verifying it would cost."""
        number = sum(choice.draft is not None for choice in chosen) or 1
        seconds = {name: now - before[name] for name, now in self.seconds.items() if now > before[name]}
        drafting = {name: 1000.0 * spent * costs.ms / number for name, spent in seconds.items()}

        def cost(draft: Draft | None) -> ShadowCost:
            if draft is None:
                return ()
            nodes = Counter(draft.sources or [draft.proposer] * len(draft.tokens))
            names = sorted(drafting.keys() | nodes.keys())
            return tuple((name, drafting.get(name, 0.0), nodes[name] * costs.token) for name in names)

        return [replace(choice, shadow_cost=cost(choice.draft)) for choice in chosen]

    def _draft(
        self, proposer: ContainedProposer, candidates: Sequence[DraftCandidate], costs: MarginalCost | None
    ) -> float:
        """Draft for the candidates that allow it; return the milliseconds that a costly proposer took.

        `costs` None: the depth is fixed, and drafts are neither weighed against their cost nor merged.
        """
        served = [each for each in candidates if each.allows(proposer.name) and proposer.serves(each.sequence)]
        if not served:
            return 0.0
        effort = self._efforts.get(proposer.name)
        if effort is not None and costs is not None:
            return self._draft_where_it_pays(proposer, effort, served, costs)
        drafts, ms = self._ask(proposer, served, [candidate.limit for candidate in served], costs)
        for candidate, draft in zip(served, drafts, strict=True):
            if draft is not None:
                candidate.compete(draft, self._board, costs.token if costs else 0.0)
        return ms

    def _draft_where_it_pays(
        self, proposer: ContainedProposer, effort: Effort, candidates: Sequence[DraftCandidate], costs: MarginalCost
    ) -> float:
        """Draft as deep as it pays; for all candidates alike, each as far as it may go."""
        length, survival = max(2, *(each.limit for each in candidates)), self.acceptance.survival
        classes = {each.sequence.traffic_class for each in candidates}
        of_class = {name: survival(proposer.name, length, name) for name in classes}
        expected = [
            ExpectedDraft(
                of_class[each.sequence.traffic_class][: each.limit],
                levels(each.best.draft, each.best.survivals) if each.best else (),
            )
            for each in candidates
        ]
        decision = effort.decide(expected, costs)
        chosen: list[DraftCandidate] = []
        depth, is_forced = decision.depth, False
        for candidate, is_asked in zip(candidates, decision.asked, strict=True):
            if is_asked or proposer.name in candidate.request.insists_on:
                chosen.append(candidate)
                is_forced |= not is_asked
            else:
                candidate.skipped_cost = True
        if not chosen:
            return 0.0
        survives = max(alive[1] / alive[0] for alive in of_class.values())
        threshold = 0.0 if is_forced else effort.threshold(len(chosen), costs) / max(_LEAST_RATE, survives)
        depth = max(depth, RETRY_DEPTH) if is_forced else depth
        drafts, ms = self._ask(proposer, chosen, [min(depth, each.limit) for each in chosen], costs, threshold)
        for candidate, draft in zip(chosen, drafts, strict=True):
            if draft is not None:
                candidate.join(draft, self._board, costs.token)
        return ms

    def _ask(
        self,
        proposer: ContainedProposer,
        candidates: Sequence[DraftCandidate],
        depths: Sequence[int],
        costs: MarginalCost | None,
        threshold: float = 0.0,
    ) -> tuple[Sequence[Draft | None], float]:
        """Return a proposer's drafts and, of a costly one, the milliseconds they took."""
        for candidate in candidates:
            candidate.asked = True
        before = proposer.seconds
        sequences, limits = [each.sequence for each in candidates], [each.limit for each in candidates]
        drafts = proposer.propose(sequences, depths, limits, threshold)
        seconds = proposer.seconds - before
        self.records.made(proposer.name, sequences, depths, drafts, seconds)
        weighed = costs if all(candidate.is_counted for candidate in candidates) else None
        self.ledger.ask(proposer.name, [origin_of(sequence) for sequence in sequences], seconds, weighed)
        if (effort := self._efforts.get(proposer.name)) is None:
            return drafts, 0.0
        deepest = max((draft.depth for draft in drafts if draft is not None), default=0)
        effort.cost.learn(effort.paid(deepest), 1000.0 * seconds)
        return drafts, 1000.0 * seconds


def _own_load(requests: Sequence[DraftRequest]) -> StepLoad:
    num_context = sum(len(request.sequence.tokens) for request in requests)
    return StepLoad(len(requests), num_context, sum(request.limit for request in requests))
