"""Decides which sequences draft: one whose drafts bring fewer tokens than they cost pauses, and tries again later.

Gains and costs are counted in tokens, costs at what plain decoding emits in the time. A sequence that is new, or was
paused, is on trial. Every step earns `_SHARE` of its tokens as credit, and trials take from it what they lose. Where
they lose, as far as they were seen, none begins without credit: so they lose at most that share, and `_MOST_CREDIT`
tokens at each load. A sequence whose drafts paid and pay no longer gives
back at most what they brought in its last steps before it pauses.

To look for drafts costs time even if none is worth verifying. Where that has cost an only sequence more than a part of
a token, it naps for some steps, longer each time, until a draft is worth verifying.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.spec.comparison import load_band

_DECAY = 0.97  # of a sequence's evidence, per step
_TRIAL = 8  # steps
_LEAST_STEPS = 4  # of a trial, before its sequence is judged
_NEW = 32  # first steps of a sequence, which tell what to expect of the next ones
_NEW_DECAY = 0.995
_NEW_WEIGHT = 64.0  # steps that it counts for at most: as many as sequences are alike
_NEW_LOSS, _NEW_GAIN = -1.0, 4.0  # tokens that it counts for at most
_PATIENCE = 0.3  # tokens that a sequence may lose before it pauses: chance alone pauses fewer that gain little
_PATIENCE_ALONE = 2.0  # where no other waits for it: chance and noise of times pause fewer
_KEPT_WEIGHT = 4.0  # steps that the evidence before a pause counts for after it
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 512  # steps; each failed trial doubles it
_LONGEST_LIGHT = 64  # steps of a pause in which a head keeps hidden states, where drafts pay for most sequences
_IDLE_COST = 0.25  # tokens, in steps without a draft worth verifying, after which a sequence that is alone naps
_FIRST_NAP, _LONGEST_NAP = 2, 8  # steps; a nap is twice as long as the one before
_SHARE = 0.004
_MOST_CREDIT = 8.0  # tokens, at each load; so much at most is owed too
_TRIALS = 2  # at once, where drafts are not known to pay
_COSTLY_TRIAL = 8  # there each eighth one has costly proposers, as a head first reads the prompt
_WAIT = 4  # steps between two looks for room
_LEAST_COST = 0.5  # tokens that a trial is expected to lose at least


@dataclass(slots=True)
class Evidence:
    """Decayed sums over steps in which a sequence was drafted for: tokens that drafts brought, and cost."""

    steps: float = 0.0
    gained: float = 0.0
    cost: float = 0.0

    @property
    def net(self) -> float:
        return self.gained - self.cost

    def add(self, gained: float, cost: float, decay: float) -> None:
        self.steps = decay * self.steps + 1.0
        self.gained = decay * self.gained + gained
        self.cost = decay * self.cost + cost

    def weigh(self, steps: float) -> None:
        """Let it count for `steps` steps at most."""
        factor = min(1.0, steps / self.steps) if self.steps else 1.0
        self.steps, self.gained, self.cost = factor * self.steps, factor * self.gained, factor * self.cost


class Expectation:
    """What drafts bring new sequences a step, less their cost, and how much they differ in that.

    Steps of one sequence vary by chance, sequences by their nature; only this makes neighbouring steps alike. So the
    mean product of a sequence's neighbouring steps, less the squared mean, is the variance between sequences, and the
    mean counts for as many steps of a sequence as the one variance is times the other (empirical Bayes).
    """

    def __init__(self) -> None:
        self._steps = self._net = self._squares = self._products = 0.0

    def add(self, net: float, before: float) -> None:
        """`before`: that of the same sequence's step before."""
        self._steps = _NEW_DECAY * self._steps + 1.0
        self._net = _NEW_DECAY * self._net + net
        self._squares = _NEW_DECAY * self._squares + net * net
        self._products = _NEW_DECAY * self._products + net * before

    @property
    def net(self) -> float:
        return self._net / self._steps if self._steps else 0.0

    @property
    def prior(self) -> float:
        """Tokens that a sequence's own evidence begins with."""
        if not self._steps:
            return 0.0
        mean = self.net
        between = max(0.0, self._products / self._steps - mean * mean)
        within = max(0.0, self._squares / self._steps - mean * mean - between)
        weight = min(_NEW_WEIGHT, within / between) if between else _NEW_WEIGHT
        return min(_NEW_GAIN, max(_NEW_LOSS, weight * mean))


@dataclass(slots=True)
class _Load:
    """State shared by all sequences that draft at one load."""

    new: Expectation = field(default_factory=Expectation)
    credit: float = _MOST_CREDIT
    num_trials: int = 0
    """Under way."""
    num_begun: int = 0
    """Trials so far."""

    @property
    def trial_cost(self) -> float:
        """Tokens that a trial is expected to lose before its sequence pauses."""
        return max(_LEAST_COST, -_LEAST_STEPS * self.new.net)

    @property
    def has_room(self) -> bool:
        """Whether one more trial may begin: where drafts were not seen to pay, few at once and as credit lasts."""
        return self.new.net > 0.0 or (self.credit > 0.0 and self.num_trials < _TRIALS)


@dataclass(slots=True)
class _History:
    evidence: Evidence = field(default_factory=Evidence)
    last: float | None = None
    """Net gain of the step before."""
    num_new: int = _NEW
    """Steps left in which it counts as new."""
    trial: int = 0
    """Steps left of its trial."""
    lender: _Load | None = None
    """That gave the credit for it, until it ends."""
    reserved: float = 0.0
    """Credit left."""
    paused: bool = False
    until: int = 0
    band: int = 0
    """Band of the load of its trial or pause: paused, it tries again at a lower one; on trial, anew at a higher one."""
    pause: int = _FIRST_PAUSE
    """Steps of its next pause."""
    rests: bool = False
    """No hidden states of it are kept for a head either."""
    is_cheap: bool = False
    """Only free proposers draft."""
    idle_cost: float = 0.0
    """Tokens that looking for drafts cost since one was worth verifying."""
    nap: int = _FIRST_NAP
    """Steps of its next nap."""
    wakes: int = 0
    """Step at which its nap ends."""


class Pauses:
    """The histories of live sequences, and what is known by load."""

    def __init__(self) -> None:
        self._histories: dict[str, _History] = {}
        self._loads: defaultdict[int, _Load] = defaultdict(_Load)
        self._band = 0
        self._step = 0

    def begin(self, keys: Sequence[str], num_sequences: int) -> list[str]:
        """Begin a step of `num_sequences` sequences; return those of `keys` that draft."""
        self._step += 1
        band = self._band = load_band(num_sequences)
        load = self._loads[band]
        load.credit = min(_MOST_CREDIT, max(-_MOST_CREDIT, load.credit) + _SHARE * num_sequences)
        histories, awake = self._histories, []
        for key in keys:
            history = histories.get(key)
            if history is None:
                history = histories[key] = _History()
                self._try(history, load)
            elif history.paused and (self._step >= history.until or band < history.band):
                self._try(history, load)
            elif history.lender is not None and band > history.band:  # where drafts may pay less
                self._settle(history)
                self._try(history, load)
            if not history.paused and self._step >= history.wakes:
                awake.append(key)
        return awake

    def rests(self, key: str) -> bool:
        """Return whether no hidden states of the sequence need be kept: its drafts are not expected to pay soon."""
        history = self._histories.get(key)
        if history is None:
            return self._loads[self._band].new.net <= 0.0
        return history.paused and history.rests

    def is_cheap(self, key: str) -> bool:
        """Return whether only free proposers shall draft for the sequence."""
        history = self._histories.get(key)
        return history is not None and history.is_cheap

    def record(self, key: str, num_nodes: int, gained: float, cost: float, num_sequences: int) -> None:
        """Learn what drafting for a sequence brought in a step, and what it cost, in tokens; `num_nodes`: verified."""
        history = self._histories.get(key)
        if history is None or history.paused:
            return
        band = load_band(num_sequences)
        load, net = self._loads[band], gained - cost
        if band == 0:
            self._nap(history, num_nodes, cost)
        if history.last is not None and (history.num_new or history.trial):
            load.new.add(net, history.last)
        history.num_new, history.last = max(0, history.num_new - 1), net
        history.evidence.add(gained, cost, _DECAY)
        if history.trial:
            history.trial -= 1
            history.reserved += net
        patience = _PATIENCE_ALONE if band == 0 else _PATIENCE
        if history.trial <= _TRIAL - _LEAST_STEPS and history.evidence.net + load.new.prior < -patience:
            self._settle(history)
            self._pause(history, load)
            history.pause = min(_LONGEST_PAUSE, 2 * history.pause)
        elif history.lender is not None and not history.trial:
            self._settle(history)
            history.pause, history.is_cheap = _FIRST_PAUSE, False

    def forget(self, key: str) -> None:
        """The sequence ended."""
        history = self._histories.pop(key, None)
        if history is not None:
            self._settle(history)

    def _try(self, history: _History, load: _Load) -> None:
        """Draft on trial, or wait until there is room for it."""
        if not load.has_room:
            history.until, history.paused, history.band = self._step + _WAIT, True, self._band
            history.rests = load.new.net <= 0.0
            return
        history.paused, history.rests, history.trial, history.band = False, False, _TRIAL, self._band
        history.evidence.weigh(_KEPT_WEIGHT)
        history.lender, history.reserved = load, load.trial_cost
        load.credit -= history.reserved
        load.num_trials += 1
        load.num_begun += 1
        history.is_cheap = load.new.net < 0.0 and load.num_begun % _COSTLY_TRIAL > 0

    def _nap(self, history: _History, num_nodes: int, cost: float) -> None:
        if num_nodes:
            history.idle_cost, history.nap = 0.0, _FIRST_NAP
            return
        history.idle_cost += cost
        if history.idle_cost > _IDLE_COST:
            history.wakes = self._step + 1 + history.nap
            history.nap = min(_LONGEST_NAP, 2 * history.nap)

    @staticmethod
    def _settle(history: _History) -> None:
        """Return what is left of the credit for a trial, or take what it lost beyond."""
        if (load := history.lender) is not None:
            load.credit += history.reserved
            load.num_trials -= 1
            history.lender = None

    def _pause(self, history: _History, load: _Load) -> None:
        """Pause; pauses end together, as steps without any drafts are the cheapest."""
        history.until = -(-(self._step + history.pause) // _FIRST_PAUSE) * _FIRST_PAUSE
        history.rests = history.pause > _LONGEST_LIGHT or load.new.net < 0.0 or self._band == 0
        history.paused, history.band = True, self._band
