"""What a training came to: figures for programs, a report and a card to read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from prolepsis.train.acceptance import DEPTH, Counts
from prolepsis.train.trainer import Measured
from prolepsis.train.workplace import Workplace


@dataclass(frozen=True, slots=True)
class Product:
    """What is trained, for people to read."""

    name: str
    about: str
    """What it is and does, as lines of Markdown."""


@dataclass(frozen=True, slots=True)
class DataFigures:
    """What was trained on."""

    documents: int
    tokens: int
    response_tokens: int
    held_out_documents: int
    by_kind: Mapping[str, int]
    """Documents."""
    coverage: Mapping[int, float]
    """Share of response tokens that are among so many, the most frequent first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All figures of a training."""

    product: Product
    target: str
    draft_vocab: int
    parameters: int
    """Without what it shares with the target."""
    data: DataFigures
    settings: Mapping[str, object]
    seconds: float
    """Of this run; a resumed training counts its last run only."""
    history: Sequence[Measured]
    by_kind: Mapping[str, Counts]


def write_result(workplace: Workplace, outcome: Outcome) -> None:
    """Write the figures as JSON."""
    part = workplace.result.with_suffix(".part")
    part.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    part.replace(workplace.result)


def write_report(workplace: Workplace, outcome: Outcome, plots: Sequence[str]) -> None:
    """Write the report beside `plots` (file names), and the card into the export."""
    workplace.report.write_text(report(outcome, plots))
    (workplace.exported / "README.md").write_text(card(outcome))


def report(outcome: Outcome, plots: Sequence[str]) -> str:
    """Return the report as Markdown."""
    return "\n".join(
        [
            f"# Training of a {outcome.product.name} for {outcome.target}",
            "",
            *_facts(outcome),
            "",
            "## Held-out acceptance",
            "Greedy chains against the target's greedy text; a rate counts drafts whose earlier tokens were right.",
            "",
            *_acceptance(outcome.by_kind),
            "",
            "## On the way",
            *_history(outcome.history),
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


def card(outcome: Outcome) -> str:
    """Return the card of what was trained as Markdown."""
    return "\n".join(
        [
            f"# {outcome.product.name[0].upper()}{outcome.product.name[1:]} for {outcome.target}",
            "",
            outcome.product.about,
            "",
            *_facts(outcome),
            "",
            "Trained on nothing but text that the target wrote: prompts it continued from openers, and its answers.",
            "",
            "## Held-out acceptance",
            *_acceptance(outcome.by_kind),
            "",
        ]
    )


def _facts(outcome: Outcome) -> list[str]:
    data, last = outcome.data, outcome.history[-1] if outcome.history else None
    rows = [
        ("parameters", f"{outcome.parameters:,}"),
        ("draft vocabulary", f"{outcome.draft_vocab:,} tokens"),
        ("text", f"{data.tokens:,} tokens in {data.documents:,} documents, {data.response_tokens:,} of them answers"),
        ("held out", f"{data.held_out_documents:,} documents"),
        ("answer tokens trained on, repeats counted", f"{last.anchors if last else 0:,}"),
        ("steps", f"{last.step if last else 0:,}"),
        ("time of the last run", f"{outcome.seconds / 60:.0f} min"),
        *((name.replace("_", " "), str(value)) for name, value in outcome.settings.items()),
    ]
    return _table(("", ""), rows)


def _acceptance(by_kind: Mapping[str, Counts]) -> list[str]:
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


def _history(history: Sequence[Measured]) -> list[str]:
    columns = ("step", "answer tokens", "loss", *(f"token {j + 1}" for j in range(DEPTH)), "chain of 3")
    return _table(
        columns,
        [
            (str(m.step), f"{m.anchors:,}", f"{m.loss:.3f}", *(f"{r:.3f}" for r in m.rates), f"{m.length:.3f}")
            for m in history
        ],
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
