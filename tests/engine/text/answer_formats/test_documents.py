"""The reference of forms names every row."""

from prolepsis.engine.text.answer_formats.formats import REASONING_FORMATS
from prolepsis.engine.text.answer_formats.table import TOOL_FORMATS
from tests.paths import ROOT

REFERENCE = ROOT / "docs" / "reference" / "tool-formats.md"


def test_every_form_is_in_the_reference() -> None:
    rows = {line.split("`")[1] for line in REFERENCE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")}
    assert rows == TOOL_FORMATS.keys() | REASONING_FORMATS.keys()
