"""Which requests are probed: few, and only while hardly any have a draft of a proposer decided."""

from prolepsis.spec.probes import ProbeBudget


class Budget:
    """A budget on a clock set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.budget = ProbeBudget(lambda: self.now)

    def ask(self, seconds: int, *, decided: bool = False, proposers: tuple[str, ...] = ("head",)) -> int:
        """Ask once a second; return how many requests are probed. `decided`: each has a draft of the head decided."""
        number = 0
        for _ in range(seconds):
            self.now += 1.0
            number += self.budget.admit("c", proposers)
            if decided:
                self.budget.saw("head", "c")
        return number


def test_one_request_in_three_seconds_is_probed_where_a_proposer_hardly_drafts() -> None:
    assert 95 <= Budget().ask(300) <= 100


def test_none_is_where_it_drafts_anyway() -> None:
    assert Budget().ask(300, decided=True) <= 10, "until twenty requests showed it"


def test_a_proposer_that_drafts_no_longer_is_probed_within_a_minute() -> None:
    budget = Budget()
    budget.ask(600, decided=True)
    assert budget.ask(60) >= 1
    assert budget.ask(60) >= 19


def test_each_proposer_counts_that_may_draft() -> None:
    budget = Budget()
    assert budget.ask(300, decided=True, proposers=("head", "model")) >= 95
    assert budget.ask(300, decided=True, proposers=("head",)) == 0


def test_at_the_start_nothing_is_probed() -> None:
    budget = Budget()
    assert not budget.budget.admit("c", ("head",))
    budget.now = 2.9
    assert not budget.budget.admit("c", ("head",))
