"""One budget for drafts and steps that are not expected to pay: a share of the tokens, in parts that starve no other.

Costs are counted in tokens, at what plain decoding emits in the time. What a kind costs beyond its part is owed, and
paid before the next grant; so all kinds together lose at most the sum of the shares, and what is owed.
"""

from typing import Literal

Kind = Literal["reference", "doubt", "trial", "retry"]
SHARES: dict[Kind, float] = {
    "reference": 0.003,  # steps without drafts, to compare those with drafts with
    "doubt": 0.005,  # more of them, while the machine seems to have changed its speed
    "trial": 0.004,  # drafts of sequences that are new or paused, where drafts are not known to pay
    "retry": 0.002,  # calls of costly proposers that are not expected to pay
}
_MOST, _MOST_OWED = 1.0, 8.0  # tokens


class Explore:
    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        self._credit = dict.fromkeys(SHARES, _MOST)

    def earn(self, num_tokens: int) -> None:
        """Credit a step in which so many tokens are emitted without drafts."""
        for kind, share in SHARES.items():
            self._credit[kind] = min(_MOST, self._credit[kind] + share * num_tokens)

    def grant(self, kind: Kind, cost: float) -> bool:
        """Return whether something of this kind may be done, and charge what it is expected to cost."""
        if cost > 0.0 >= self._credit[kind]:
            return False
        self._credit[kind] -= max(0.0, cost)
        return True

    def charge(self, kind: Kind, cost: float) -> None:
        """Charge what something of this kind cost beyond its grant; below 0: less. Surprises owe little."""
        before = self._credit[kind]
        self._credit[kind] = min(_MOST, max(min(before, -_MOST_OWED), before - cost))
