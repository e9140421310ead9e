"""What a constrained answer must look like, as plain values; `prolepsis.grammar` compiles it against the tokenizer."""

from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["json_schema", "regex", "choice", "lark"]

JSON_STYLE: dict[str, bool | str] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON answers are spaced: on one line, as Python's `json.dumps` writes it, so whitespace cannot run away.

It is applied to every `json_schema`. A schema embedded in a lark grammar carries it itself, as "x-guidance".
"""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A language the answer must belong to; equal specs share one compiled grammar."""

    kind: GrammarKind
    source: str
    """json_schema: the schema as JSON; choice: a JSON list of strings; regex and lark: their own text.

    lark is llguidance's dialect, in which `%json {...}` embeds a schema.
    """
