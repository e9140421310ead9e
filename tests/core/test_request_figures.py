"""The table of figures, and its reference in the documentation."""

from prolepsis.core.request_figures import FIGURES
from tests.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "store.md"


def reference() -> str:
    """Return the rows of the page on the store: `python -m tests.core.test_request_figures` prints them."""
    rows = ["| column | | in traces | in metrics |", "|---|---|---|---|"]
    for figure in FIGURES:
        series = ", ".join(f"`prolepsis_{name}_total`" for name in figure.counters or ())
        attribute = f"`{figure.at[1]}`" if figure.at else ""
        unit = "seconds, " if figure.kind.startswith("seconds") else ""
        rows.append(f"| `{figure.name}` | {unit}{figure.text} | {attribute} | {series} |")
    return "\n".join(rows)


def test_the_page_has_every_figure() -> None:
    assert reference() in PAGE.read_text()


def test_names_and_attributes_stand_once() -> None:
    names = [figure.name for figure in FIGURES]
    attributes = [figure.at for figure in FIGURES if figure.at]
    assert (len(set(names)), len(set(attributes))) == (len(names), len(attributes))


if __name__ == "__main__":
    print(reference())
