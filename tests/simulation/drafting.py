"""An engine in numbers: sequences whose drafts are accepted with known chances, steps that take known times."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.window import DraftWindow, StepLoad
from prolepsis.engine.drafting.worth import AS_PREDICTED, StepCost

_DEPTH = 4
_NOISE = 0.03  # of a step's time, as standard deviation


@dataclass(frozen=True, slots=True)
class Machine:
    """What steps take, in milliseconds."""

    pass_ms: float = 8.0
    """Of a pass, for any number of tokens."""
    token_ms: float = 0.25
    """Of each token in it."""
    hidden_ms: float = 0.0
    """Of each draft token, outside of everything that is estimated."""
    awake_ms: float = 0.05
    """Of proposing for a sequence, and of what proposers learn from it."""

    def plain_ms(self, num_sequences: int) -> float:
        return self.pass_ms + self.token_ms * num_sequences


@dataclass(slots=True)
class _Sequence:
    key: str
    chance: float
    """That a draft token is accepted if its parent was."""
    num_tokens: int = 0


class Simulation:
    """Steps of `len(chances)` sequences of `length` tokens, each replaced at its end by one of the same chance.

    The estimated cost of a token in the pass is `error` times the real one. `payback` None: all sequences draft.
    """

    def __init__(
        self,
        machine: Machine,
        chances: Sequence[float],
        payback: Payback | None = None,
        *,
        error: float = 1.0,
        length: int = 128,
        seed: int = 0,
    ) -> None:
        self.machine = machine
        self.ms = 0.0
        self.num_tokens = 0
        self.num_drafted: dict[float, int] = {}
        """Draft tokens verified, by chance."""
        self.hiccup_ms = 0.0
        """That the next step in which sequences may draft takes longer at making drafts."""
        self.slowness = 1.0
        """Times longer that steps take while something else uses the machine."""
        self._payback = payback
        self._sizes = lru_cache(1)(self._chosen)  # where all draft, each step has the same choice
        self._window = DraftWindow(
            flat_cost(machine.pass_ms, error * machine.token_ms), overhead_ms=0.0, token_overhead_ms=0.01
        )
        self._length = length
        self._random = random.Random(seed)
        self._num_begun = 0
        self._sequences = [self._begin(chance) for chance in chances]

    def run(self, seconds: float) -> float:
        """Step for so many simulated seconds; return the milliseconds per token in them."""
        ms, num_tokens = self.ms, self.num_tokens
        while self.ms < ms + 1000.0 * seconds:
            self._step()
        return (self.ms - ms) / (self.num_tokens - num_tokens)

    def replace(self, chances: Sequence[float]) -> None:
        """Continue with other sequences."""
        self._sequences = [self._begin(chance) for chance in chances]

    def _begin(self, chance: float) -> _Sequence:
        self._num_begun += 1
        return _Sequence(str(self._num_begun), chance)

    def _step(self) -> None:
        keys, number = [each.key for each in self._sequences], len(self._sequences)
        payback, machine = self._payback, self.machine
        if payback:
            payback.explore.earn(number)
        awake = payback.begin(keys, number) if payback else frozenset(keys)
        load = StepLoad(number, 0, 1000, payback.correction(number) if payback and awake else AS_PREDICTED)
        survivals = tuple(_chain(each.chance) if each.key in awake else () for each in self._sequences)
        drafting_ms = machine.awake_ms * len(awake)
        sizes = self._sizes(survivals, load, drafting_ms)
        gained = [self._accepted(each.chance, size) for each, size in zip(self._sequences, sizes, strict=True)]
        num_nodes, num_tokens = sum(sizes), number + sum(gained)
        ms = machine.plain_ms(number + num_nodes) + drafting_ms + num_nodes * machine.hidden_ms
        factor = self.slowness * self._random.lognormvariate(0.0, _NOISE)
        ms, drafting_ms = factor * ms, factor * drafting_ms
        if awake:
            ms, drafting_ms, self.hiccup_ms = ms + self.hiccup_ms, drafting_ms + self.hiccup_ms, 0.0
        if payback and payback.is_due:
            load = StepLoad(number, 0, 1000)
            plain_ms, added_ms = self._window.plain_ms(load, number), self._window.added_ms(load, num_nodes)
            cost = StepCost(number, num_tokens, num_nodes, ms, plain_ms, drafting_ms, added_ms)
            drafts = {key: (sizes[i], gained[i]) for i, key in enumerate(keys) if key in awake}
            payback.observe(cost, drafts)
        self._commit(sizes, gained)
        self.ms += ms
        self.num_tokens += num_tokens

    def _chosen(self, survivals: tuple[tuple[float, ...], ...], load: StepLoad, drafting_ms: float) -> Sequence[int]:
        """Return how many nodes of each draft are verified."""
        return [len(nodes) for nodes in self._window.cut(survivals, load, drafting_ms).nodes]

    def _accepted(self, chance: float, size: int) -> int:
        return next((i for i in range(size) if self._random.random() >= chance), size)

    def _commit(self, sizes: Sequence[int], gained: Sequence[int]) -> None:
        for i, sequence in enumerate(self._sequences):
            self.num_drafted[sequence.chance] = self.num_drafted.get(sequence.chance, 0) + sizes[i]
            sequence.num_tokens += 1 + gained[i]
            if sequence.num_tokens >= self._length:
                if self._payback:
                    self._payback.forget(sequence.key)
                self._sequences[i] = self._begin(sequence.chance)


@cache
def _chain(chance: float) -> tuple[float, ...]:
    return tuple(chance**depth for depth in range(1, _DEPTH + 1))
