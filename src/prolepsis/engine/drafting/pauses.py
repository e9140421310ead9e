"""Decides which sequences draft: one whose drafts bring fewer tokens than they cost pauses, and tries again later.

Gains and costs are counted in tokens, costs at what plain decoding emits in the time. A sequence that is new, or was
paused, is on trial. Where drafts are not known to pay, a trial takes what it loses from the budget of what is not
expected to pay (`engine.drafting.explore`). A sequence whose drafts paid and pay no longer gives back at most what
they brought in its last steps before it pauses.

To look for drafts costs time even if none is worth verifying. Where that has cost an only sequence more than a part of
a token, looking backs off for some steps, longer each time, until a draft is worth verifying.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.engine.drafting.explore import Explore
from prolepsis.engine.drafting.worth import load_band

_DECAY = 0.97  # of a sequence's evidence, per step
_TRIAL, _LEAST_STEPS = 8, 4  # steps of a trial; before a sequence is judged
_NEW = 32  # first steps of a sequence, which show what to expect of the next ones
_NEW_DECAY = 0.995
_NEW_WEIGHT = 64.0  # steps that it counts for at most: as many as sequences are alike
_NEW_LOSS, _NEW_GAIN = -1.0, 4.0  # tokens that it counts for at most
_LOSS_LIMIT, _LOSS_LIMIT_ALONE = 0.3, 2.0  # tokens lost before a pause; of a sequence alone
_KEPT_WEIGHT = 4.0  # steps that the evidence before a pause counts for after it
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 512  # steps; each failed trial doubles it
_IDLE_COST = 0.25  # tokens, in steps without a draft worth verifying, after which a sequence that is alone backs off
_FIRST_BACKOFF, _LONGEST_BACKOFF = 2, 8  # steps; an idle back-off is twice as long as the one before
_WAIT = 4  # steps between two looks for room
_LEAST_COST = 0.5  # tokens that a trial is expected to lose at least


class Expectation:
    """What drafts bring new sequences a step, less their cost, and how much they differ in that.

    Steps of one sequence vary by chance, sequences by their nature; only this makes neighbouring steps alike. So the
    mean product of a sequence's neighbouring steps, less the squared mean, is the variance between sequences, and the
    mean counts for as many steps of a sequence as the one variance is times the other (empirical Bayes).
    """

    def __init__(self) -> None:
        self._steps = self._net = self._squares = self._products = 0.0

    def add(self, net: float, before: float) -> None:
        """`before`: the value of the sequence's previous step."""
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
class _History:
    steps: float = 0.0
    net: float = 0.0
    """Decayed sums over steps in which it was drafted for: their number, and tokens gained less their cost."""
    last: float | None = None
    num_new: int = _NEW  # steps left in which it counts as new
    trial: int = 0
    charged: float = 0.0  # tokens of the budget that its trial may still lose
    is_charged: bool = False
    paused: bool = False
    until: int = 0  # step at which its pause or idle back-off ends
    band: int = 0
    """Load band in which its trial or pause began: a lower band ends a pause early, a higher one restarts a trial."""
    pause: int = _FIRST_PAUSE
    idle_cost: float = 0.0  # tokens that looking for drafts cost since one was worth verifying
    backoff: int = _FIRST_BACKOFF


class Pauses:
    """Per-sequence state (active, paused, on trial) and the expected gain per load band."""

    def __init__(self, explore: Explore) -> None:
        self._explore = explore
        self._histories: dict[str, _History] = {}
        self._new: defaultdict[int, Expectation] = defaultdict(Expectation)
        self._band = 0
        self._step = 0

    def begin(self, keys: Sequence[str], num_sequences: int) -> list[str]:
        """Begin a step of `num_sequences` sequences; return the keys that draft."""
        self._step += 1
        band = self._band = load_band(num_sequences)
        histories, active = self._histories, []
        for key in keys:
            history = histories.get(key)
            if history is None:
                history = histories[key] = _History()
                self._try(history)
            elif history.paused and (self._step >= history.until or band < history.band):
                self._try(history)
            elif history.is_charged and band > history.band:  # where drafts may pay less
                self._settle(history)
                self._try(history)
            if not history.paused and self._step >= history.until:
                active.append(key)
        return active

    def drops_states(self, key: str) -> bool:
        """Return whether no hidden states of the sequence need be kept: its drafts are not expected to pay soon."""
        history = self._histories.get(key)
        return (history is None or history.paused) and self._new[self._band].net <= 0.0

    def record(self, key: str, num_nodes: int, net: float, num_sequences: int) -> None:
        """Learn what drafting for a sequence brought in a step, less its cost, in tokens; `num_nodes`: verified."""
        history = self._histories.get(key)
        if history is None or history.paused:
            return
        band = load_band(num_sequences)
        new = self._new[band]
        if band == 0:  # looking for drafts in vain backs off, longer each time
            history.idle_cost -= net
            if num_nodes:
                history.idle_cost, history.backoff = 0.0, _FIRST_BACKOFF
            elif history.idle_cost > _IDLE_COST:
                history.until = self._step + 1 + history.backoff
                history.backoff = min(_LONGEST_BACKOFF, 2 * history.backoff)
        if history.last is not None and (history.num_new or history.trial):
            new.add(net, history.last)
        history.num_new, history.last = max(0, history.num_new - 1), net
        history.steps, history.net = _DECAY * history.steps + 1.0, _DECAY * history.net + net
        if history.trial:
            history.trial -= 1
            history.charged += net
        loss_limit = _LOSS_LIMIT_ALONE if band == 0 else _LOSS_LIMIT
        if history.trial <= _TRIAL - _LEAST_STEPS and history.net + new.prior < -loss_limit:
            self._settle(history)
            # pauses end together, as steps without any drafts are the cheapest
            history.until = -(-(self._step + history.pause) // _FIRST_PAUSE) * _FIRST_PAUSE
            history.paused, history.band = True, self._band
            history.pause = min(_LONGEST_PAUSE, 2 * history.pause)
        elif history.is_charged and not history.trial:
            self._settle(history)
            history.pause = _FIRST_PAUSE

    def forget(self, key: str) -> None:
        history = self._histories.pop(key, None)
        if history is not None:
            self._settle(history)

    def _try(self, history: _History) -> None:
        """Draft on trial, or wait until there is room for it."""
        new = self._new[self._band]
        cost = max(_LEAST_COST, -_LEAST_STEPS * new.net)
        if new.net <= 0.0 and not self._explore.grant("trial", cost):
            history.until, history.paused, history.band = self._step + _WAIT, True, self._band
            return
        history.is_charged, history.charged = new.net <= 0.0, cost
        history.paused, history.until, history.trial, history.band = False, 0, _TRIAL, self._band
        factor = min(1.0, _KEPT_WEIGHT / history.steps) if history.steps else 1.0
        history.steps, history.net = factor * history.steps, factor * history.net

    def _settle(self, history: _History) -> None:
        """Give back what a trial did not lose, or take what it lost beyond."""
        if history.is_charged:
            self._explore.charge("trial", -history.charged)
            history.is_charged = False
