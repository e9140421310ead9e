"""The result of a training: figures for programs, and a report with plots and a model card for people."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from prolepsis.core.files import replacing
from prolepsis.core.terminal.output import stderr
from prolepsis.training.acceptance import DEPTH, AcceptedCounts
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.trainer import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.progress import Progress


PRODUCT = "draft head (EAGLE-3)"
ABOUT = (
    "One decoder layer that guesses the target's next tokens from its hidden states. It only changes how fast\n"
    "the target answers, never what. Format: speculators, EAGLE-3; embeddings are the target's own."
)


@dataclass(frozen=True, slots=True)
class DataFigures:
    """Figures of the training data."""

    documents: int
    tokens: int
    response_tokens: int
    held_out_documents: int
    by_kind: Mapping[str, int]  # number of documents by kind of prompt
    coverage: Mapping[int, float]
    """Share of response tokens covered by the most frequent tokens, by their number."""


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """All figures of a training."""

    target: str
    draft_vocab: int
    parameters: int  # without the weights that belong to the target
    data: DataFigures
    settings: Mapping[str, object]
    seconds: float  # duration of this run; a resumed training counts only its last run
    history: Sequence[Measured]
    by_kind: Mapping[str, AcceptedCounts]


def write_result(directory: RunDirectory, outcome: TrainingOutcome) -> None:
    """Write the figures as JSON."""
    with replacing(directory.result) as part:
        part.write_text(json.dumps(asdict(outcome), indent=2) + "\n")


def write_report(directory: RunDirectory, outcome: TrainingOutcome, plots: Sequence[str]) -> None:
    """Write the report with links to `plots` (file names), and the model card into the export."""
    directory.report.write_text(report(outcome, plots))
    (directory.exported / "README.md").write_text(card(outcome))


def report(outcome: TrainingOutcome, plots: Sequence[str]) -> str:
    """Return the report as Markdown."""
    columns = ("step", "answer tokens", "loss", *(f"token {j + 1}" for j in range(DEPTH)), "chain of 3")
    history = [
        (str(m.step), f"{m.anchors:,}", f"{m.loss:.3f}", *(f"{r:.3f}" for r in m.rates), f"{m.length:.3f}")
        for m in outcome.history
    ]
    return "\n".join(
        [
            f"# Training of a {PRODUCT} for {outcome.target}",
            "",
            *_facts(outcome),
            "",
            "## Held-out acceptance",
            "Greedy chains against the target's greedy text; a rate counts drafts whose earlier tokens were right.",
            "",
            *_acceptance(outcome.by_kind),
            "",
            "## During training",
            *_table(columns, history),
            "",
            "## Coverage of the most frequent tokens",
            *_table(
                ("tokens", "share of response tokens"),
                [(str(size), f"{share:.2%}") for size, share in outcome.data.coverage.items()],
            ),
            "",
            *(f"![{name.removesuffix('.png')}]({name})\n" for name in plots),
        ]
    )


def card(outcome: TrainingOutcome) -> str:
    """Return the model card as Markdown."""
    return "\n".join(
        [
            f"# {PRODUCT[0].upper()}{PRODUCT[1:]} for {outcome.target}",
            "",
            ABOUT,
            "",
            *_facts(outcome),
            "",
            "Trained only on text written by the target: prompts that it completed, and its answers to them.",
            "",
            "## Held-out acceptance",
            *_acceptance(outcome.by_kind),
            "",
        ]
    )


def progress_bar() -> "Progress":
    """Return a progress bar whose tasks have a field `status`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[status]}"), console=stderr())


def _facts(outcome: TrainingOutcome) -> list[str]:
    data, last = outcome.data, outcome.history[-1] if outcome.history else None
    rows = [
        ("parameters", f"{outcome.parameters:,}"),
        ("draft vocabulary", f"{outcome.draft_vocab:,} tokens"),
        ("text", f"{data.tokens:,} tokens in {data.documents:,} documents, {data.response_tokens:,} of them answers"),
        ("held out", f"{data.held_out_documents:,} documents"),
        ("answer tokens trained on, with repeats", f"{last.anchors if last else 0:,}"),
        ("steps", f"{last.step if last else 0:,}"),
        ("time of the last run", f"{outcome.seconds / 60:.0f} min"),
        *((name.replace("_", " "), str(value)) for name, value in outcome.settings.items()),
    ]
    return _table(("", ""), rows)


def _acceptance(by_kind: Mapping[str, AcceptedCounts]) -> list[str]:
    columns = ("prompts", *(f"token {j + 1}" for j in range(DEPTH)), "chain of 3", "drafts")
    kinds = sorted(by_kind, key=lambda kind: (kind != "all", kind))
    return _table(
        columns,
        [
            (
                kind,
                *(f"{rate:.3f}" for rate in by_kind[kind].rates),
                f"{by_kind[kind].length():.2f}",
                str(by_kind[kind].trials[0]),
            )
            for kind in kinds
        ],
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def draw(directory: RunDirectory, outcome: TrainingOutcome) -> list[str]:
    """Write the plots of `outcome` next to the report; return their file names, none without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    files = {directory.root / name: plot for name, plot in PLOTS.items()}
    for file, plot in files.items():
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        plot(figure.add_subplot(), outcome)
        figure.savefig(file, dpi=110)
    return [file.name for file in files]


def _loss(axes: "Axes", outcome: TrainingOutcome) -> None:
    measured = [m for m in outcome.history if m.loss == m.loss]  # the first loss may be not a number
    axes.plot([m.anchors for m in measured], [m.loss for m in measured])
    axes.set(xlabel="answer tokens trained on", ylabel="loss", title="Training loss, summed over steps")


def _over_tokens(axes: "Axes", outcome: TrainingOutcome) -> None:
    anchors = [m.anchors for m in outcome.history]
    for j in range(DEPTH):
        axes.plot(anchors, [m.rates[j] for m in outcome.history], label=f"token {j + 1}")
    axes.plot(anchors, [m.length - 1 for m in outcome.history], "k--", label="accepted of a chain of 3")
    axes.set(xlabel="answer tokens trained on", ylabel="held-out acceptance", title="Acceptance over training")
    axes.legend()


def _by_position(axes: "Axes", outcome: TrainingOutcome) -> None:
    rates = outcome.by_kind["all"].rates if "all" in outcome.by_kind else []
    axes.bar([str(j + 1) for j in range(len(rates))], rates)
    axes.set(xlabel="drafted token", ylabel="acceptance rate", title="Acceptance by position", ylim=(0, 1))


def _by_kind(axes: "Axes", outcome: TrainingOutcome) -> None:
    kinds = sorted(outcome.by_kind, key=lambda kind: outcome.by_kind[kind].length())
    axes.barh(kinds, [outcome.by_kind[kind].length() for kind in kinds])
    axes.set(xlabel="expected tokens a pass, chain of 3", title="By kind of prompt", xlim=(1, None))


def _coverage(axes: "Axes", outcome: TrainingOutcome) -> None:
    sizes = sorted(outcome.data.coverage)
    axes.plot(sizes, [outcome.data.coverage[size] for size in sizes], marker="o")
    axes.set(xlabel="most frequent tokens", ylabel="share of answer tokens", title="Coverage")


PLOTS: dict[str, Callable[["Axes", TrainingOutcome], None]] = {
    "loss.png": _loss,
    "acceptance.png": _over_tokens,
    "positions.png": _by_position,
    "kinds.png": _by_kind,
    "coverage.png": _coverage,
}
"""Plots by file name."""
