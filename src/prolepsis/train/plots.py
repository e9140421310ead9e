"""The report's pictures; drawn where matplotlib is installed (the extra `train`), left out elsewhere."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from prolepsis.train.acceptance import DEPTH
from prolepsis.train.report import Outcome
from prolepsis.train.workplace import Workplace

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(workplace: Workplace, outcome: Outcome) -> list[str]:
    """Write the plots of `outcome` beside the report; return their file names, none without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    files = {workplace.file(name): plot for name, plot in PLOTS.items()}
    for file, plot in files.items():
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        plot(figure.add_subplot(), outcome)
        figure.savefig(file, dpi=110)
    return [file.name for file in files]


def _loss(axes: "Axes", outcome: Outcome) -> None:
    measured = [m for m in outcome.history if m.loss == m.loss]  # the first has none: it is not a number
    axes.plot([m.anchors for m in measured], [m.loss for m in measured])
    axes.set(xlabel="answer tokens trained on", ylabel="loss", title="Training loss, summed over steps")


def _over_tokens(axes: "Axes", outcome: Outcome) -> None:
    anchors = [m.anchors for m in outcome.history]
    for j in range(DEPTH):
        axes.plot(anchors, [m.rates[j] for m in outcome.history], label=f"token {j + 1}")
    axes.plot(anchors, [m.length - 1 for m in outcome.history], "k--", label="accepted of a chain of 3")
    axes.set(xlabel="answer tokens trained on", ylabel="held-out acceptance", title="Acceptance over training")
    axes.legend()


def _by_position(axes: "Axes", outcome: Outcome) -> None:
    rates = outcome.by_kind["all"].rates if "all" in outcome.by_kind else []
    axes.bar([str(j + 1) for j in range(len(rates))], rates)
    axes.set(xlabel="drafted token", ylabel="acceptance rate", title="Acceptance by position", ylim=(0, 1))


def _by_kind(axes: "Axes", outcome: Outcome) -> None:
    kinds = sorted(outcome.by_kind, key=lambda kind: outcome.by_kind[kind].length())
    axes.barh(kinds, [outcome.by_kind[kind].length() for kind in kinds])
    axes.set(xlabel="expected tokens of a step, chain of 3", title="By kind of prompt", xlim=(1, None))


def _coverage(axes: "Axes", outcome: Outcome) -> None:
    sizes = sorted(outcome.data.coverage)
    axes.plot(sizes, [outcome.data.coverage[size] for size in sizes], marker="o")
    axes.set(xlabel="most frequent tokens", ylabel="share of answer tokens", title="Coverage")


PLOTS: dict[str, Callable[["Axes", Outcome], None]] = {
    "loss.png": _loss,
    "acceptance.png": _over_tokens,
    "positions.png": _by_position,
    "kinds.png": _by_kind,
    "coverage.png": _coverage,
}
"""File name -> what draws it."""
