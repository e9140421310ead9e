"""Which requests are probed: few, and only while hardly any have a draft of a proposer decided."""

from prolepsis.spec.probes import ProbeBudget


class Budget:
    """A budget on a clock set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.budget = ProbeBudget(lambda: self.now)

    def ask(
        self, seconds: int, *, decided: bool = False, proposers: tuple[str, ...] = ("head",), cost_s: float = 0.0
    ) -> int:
        """Ask once a second; return how many requests are probed. `decided`: each has a draft of the head decided."""
        number = 0
        for _ in range(seconds):
            self.now += 1.0
            if self.budget.admit("c", proposers):
                number += 1
                self.budget.spend(cost_s)
            if decided:
                self.budget.saw("head", "c")
        return number


def test_every_other_second_a_request_is_probed_where_a_proposer_hardly_drafts() -> None:
    assert 149 <= Budget().ask(300) <= 150


def test_none_is_where_it_drafts_anyway() -> None:
    assert Budget().ask(300, decided=True) <= 5, "until a few requests showed it"


def test_what_was_decided_of_a_proposer_that_was_exchanged_does_not_count_for_the_next() -> None:
    budget = Budget()
    budget.ask(600, decided=True)
    assert budget.ask(4) == 0
    budget.budget.exchange("head")
    assert budget.ask(10) >= 4


def test_a_proposer_that_drafts_no_longer_is_probed_within_seconds() -> None:
    budget = Budget()
    budget.ask(600, decided=True)
    assert budget.ask(30) >= 8


def test_probes_take_a_share_of_the_time() -> None:
    """Sixty requests are a verdict: two minutes where a probe takes 5 ms."""
    assert 59 <= Budget().ask(120, cost_s=0.005) <= 60
    slow = Budget()
    slow.ask(1000, cost_s=0.025)
    assert 0.8 * 0.0025 * 1000 <= slow.budget.seconds <= 0.0025 * 1000 + 0.1


def test_probes_whose_prompts_are_still_read_count_too() -> None:
    assert Budget().ask(8) <= 4


def test_time_without_probes_is_not_saved_up() -> None:
    budget = Budget()
    budget.ask(100, cost_s=0.05)
    budget.ask(3600, decided=True)
    assert budget.ask(100, cost_s=0.05) <= 10


def test_each_proposer_counts_that_may_draft() -> None:
    budget = Budget()
    assert budget.ask(300, decided=True, proposers=("head", "model")) >= 149
    assert budget.ask(300, decided=True, proposers=("head",)) == 0
    assert budget.ask(300, proposers=()) == 0, "nor is there a probe where none may"


def test_at_the_start_nothing_is_probed() -> None:
    budget = Budget()
    assert not budget.budget.admit("c", ("head",))
    budget.now = 0.9
    assert not budget.budget.admit("c", ("head",))
