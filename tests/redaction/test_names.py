"""Names: what announces them, what lists say, and what only looks like a name."""

import subprocess
import sys

import pytest

from prolepsis.redaction.names import without_names

FOUND = {
    "my name is jordan reeves and i wait": "my name is [NAME] and i wait",
    "Dear Zyxwina, thanks": "Dear [NAME], thanks",
    "ask Zyxwin to call": "ask [NAME] to call",
    "met Herr Zyxwinger at noon": "met Herr [NAME] at noon",
    "the buyer is Karin M. Zyxwin of Ghent": "the buyer is [NAME] of Ghent",
    "we hired Wibke van der Zyxwin today": "we hired [NAME] today",
    "paid by Maria and Zyxwina yesterday": "paid by [NAME] and [NAME] yesterday",
    "Anna Zyxwin sang. Later Zyxwin left.": "[NAME] sang. Later [NAME] left.",
    "Best regards,\nZyxwin Abcdefg": "Best regards,\n[NAME]",
    '{"first_name": "Zyxwin", "plan": "gold"}': '{"first_name": "[NAME]", "plan": "gold"}',
    "login eva.schmidt failed": "login [NAME] failed",
}
KEPT = [
    "Mark the file as read and may the rose bloom in August",
    "Charlotte is a city in North Carolina, Jordan a river",
    "Schmidt Maschinenbau GmbH and Hill Inc deliver",
    "Gemma 3 and Claude run beside Llama",
    "Hello World, Dear Customer, Hi Team",
    "from api.deltas import Delta, OutputToken",
    "Anna",
    "Every Hoffmann is welcome",
]


@pytest.mark.parametrize("text", FOUND)
def test_names_are_marked(text: str) -> None:
    assert without_names(text) == FOUND[text]


@pytest.mark.parametrize("text", KEPT)
def test_other_capitalised_words_stay(text: str) -> None:
    assert without_names(text) == text


def test_the_lists_are_read_with_the_first_prose_only() -> None:
    program = (
        "import sys; import prolepsis.api.run; from prolepsis.redaction.values import redacted\n"
        "redacted({'model': 'SmolLM', 'why': 'slow since noon', 'port': 8000}); print('faker' in sys.modules)\n"
        "redacted('told Anna'); print('faker' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\nTrue\n"
