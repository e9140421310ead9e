"""Tables with a header: values in columns that are named after dates of birth, numbers of people, names or secrets."""

import re
from collections.abc import Iterator, Mapping, Sequence

from prolepsis.control.redaction import birth_dates, name_cues, national_ids, secrets

_MARKS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"(?i){column}"), mark)
    for column, mark in (
        (r"dob|(?:date[_ ]of[_ ]birth|birth[_ ]?da(?:te|y))|geburtsdatum|fecha[_ ]de[_ ]nacimiento", birth_dates.MARK),
        (
            r"mrn|ssn|(?:patient|member|customer|account|employee|student|passport|policy|national)[_ ]?"
            r"(?:id|no|number)|"
            r"kundennummer|patientennummer",
            national_ids.MARK,
        ),
        (r"(?:first|last|full|family|given|sur)[_ ]?names?|vorname|nachname|nombre|apellidos?|prénom", name_cues.MARK),
        (r"pass(?:word|wd)|pw|secret|api[_ ]?key|pin", secrets.MARK),
    )
)
_HEADER = re.compile(r"(?m)^[\w \"]{1,40}(?:([,;\t|])[\w \"]{1,40}){1,30}$")
_MOST_ROWS = 10_000  # rows of a table that are looked at


def without_columns(text: str) -> str:
    """Return the text with marks in place of the values of such columns, as far as rows have the header's columns."""
    for header in _HEADER.finditer(text) if "\n" in text else ():
        columns = header[0].split(header[1])
        if marks := _marks(columns):
            rows = text[header.end() :].split("\n", _MOST_ROWS)
            return text[: header.end()] + "\n".join(_rows(rows, header[1], len(columns), marks))
    return text


def _marks(columns: Sequence[str]) -> Mapping[int, str]:
    named = enumerate(column.strip(' "') for column in columns)
    return {i: mark for i, column in named for pattern, mark in _MARKS if pattern.fullmatch(column)}


def _rows(rows: Sequence[str], separator: str, num_columns: int, marks: Mapping[int, str]) -> Iterator[str]:
    is_in = True
    for i, row in enumerate(rows):
        cells = row.split(separator)
        is_in = is_in and (i == 0 or len(cells) == num_columns)
        if is_in and i:
            cells = [marks[i] if i in marks and cell.strip(' "') else cell for i, cell in enumerate(cells)]
        yield separator.join(cells)
