"""Which requests are probed: few, and only while some proposer is asked too seldom."""

from prolepsis.spec.ledger import Ledger
from prolepsis.spec.probes import ProbeBudget


class Budget:
    """A budget on a clock set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ledger = Ledger(("head", "suffix"))
        self.budget = ProbeBudget(self.ledger, lambda: self.now)

    def ask(self, seconds: int, *, asked: int = 0, proposers: tuple[str, ...] = ("head",)) -> int:
        """Ask once a second; return how many requests are probed. `asked`: samples a second for the head."""
        number = 0
        for _ in range(seconds):
            self.now += 1.0
            number += self.budget.admit("c", proposers)
            if asked:
                self.ledger.ask("head", ["c"] * asked, 0.001, None)
        return number


def test_one_request_in_three_seconds_is_probed_where_a_proposer_is_hardly_asked() -> None:
    assert 80 <= Budget().ask(300) <= 100


def test_none_is_where_it_is_asked_anyway() -> None:
    assert Budget().ask(300, asked=3) <= 1


def test_a_proposer_that_is_asked_no_longer_is_probed_within_a_minute() -> None:
    budget = Budget()
    budget.ask(600, asked=3)
    assert budget.ask(60) >= 1
    assert budget.ask(60) >= 15


def test_each_proposer_counts_that_may_draft() -> None:
    budget = Budget()
    assert budget.ask(300, asked=3, proposers=("head", "suffix")) >= 80
    assert budget.ask(300, asked=3, proposers=("head",)) <= 1


def test_at_the_start_nothing_is_probed() -> None:
    budget = Budget()
    assert not budget.budget.admit("c", ("head",))
    budget.now = 2.9
    assert not budget.budget.admit("c", ("head",))
