"""Why a grammar is refused or gave up, in the words of those who write grammars, from llguidance's messages."""

import json
import re
from collections.abc import Sequence

from prolepsis.core.requests import GrammarKind, GrammarSpec
from prolepsis.engine.text.grammar.satisfiable import placed

ALLOWED: dict[GrammarKind, str] = {
    "json_schema": "allowed: JSON Schema 2020-12 or earlier, with the keywords and formats in the API's reference",
    "choice": "allowed: a JSON list of non-empty strings",
    "regex": "allowed: a regular expression without look-around and back-references, matched from start to end",
    "lark": "allowed: GBNF, or the API's dialect of lark, with a rule named start",
}
TABLES_FULL = "too many states"
"""The library's message when the lexer that a grammar's sequences share has reached its limit of states."""
SPENT = "too many expressions"
"""Its message when a step has spent what it may on new states; the shared lexer stays so too."""
_EMBEDDED = "failed to compile JSON schema: "
_TOO_COMPLEX = "its size, or the number of ways to read a text by it, is above the limits"
_ABOUT = (
    ("patternProperty regexes", "patternProperties"),
    ("min/maxProperties", "minProperties"),
    ("min/maxProperties", "maxProperties"),
    ("oneOf constraints", "oneOf"),
)
"""Words of messages, and the keyword that they are about."""
_MOST_PLACES = 4
_WORDS: Sequence[tuple[str, str]] = (
    (r"Regex is empty", "no text fits a pattern, format and lengths that hold together"),
    (r"Unable to determine if regex is empty", "a pattern is too large"),
    (r"Failed to generate regex for", "the bounds of a number are too large"),
    (r"oneOf constraints are not supported", "oneOf of schemas that may overlap is not supported; anyOf is"),
    (r"lookarounds not supported", "a pattern has look-around, or ^, $ or \\b inside"),
    (r"NoExtensionBias|no extension", "nothing can follow"),
    (r'unknown special token: "([^"]*)"', r"\1 is no token of the model"),
    (r"token range end too large: (\d+)", r"the model has no token \1"),
    (r"too many|limit|fuel|exceeded|stack level|lexer error", _TOO_COMPLEX),
    (r"parser error|panic|unwrap|unreachable|assert", "it cannot be followed"),
)
"""What replaces a message in which the pattern is found; the first that is."""


def refusal(spec: GrammarSpec, error: str) -> tuple[GrammarKind, str]:
    """Return what cannot be compiled, which may be a schema inside, and why: its first line, and of a regular
    expression the line that says what is wrong with it, of a keyword its places.
    """
    kind = spec.kind
    first, *more = error.splitlines() or [""]
    if _EMBEDDED in first:
        kind, first = "json_schema", first.partition(_EMBEDDED)[2]
    detail = next((line.removeprefix("error: ") for line in more if line.startswith("error: ")), "")
    if detail:
        return kind, f"{first.removesuffix(':')}: {detail}"
    return kind, plain(first) + (_places(spec.source, first) if spec.kind == "json_schema" else "")


def _places(source: str, message: str) -> str:
    """Return where the keywords stand in a schema which a message is about."""
    keys = re.match(r"Unimplemented keys: \[(.*)\]", message)
    names = re.findall(r'"([^"]+)"', keys[1]) if keys else []
    names += [name for words, name in _ABOUT if words in message]
    places = [
        f"{place}.{name}" if place else name
        for place, part in placed(json.loads(source))
        for name in names
        if name in part
    ]
    return f" (at {', '.join(places[:_MOST_PLACES])})" if places else ""


def plain(message: str) -> str:
    """Return a message without words of the library's inside."""
    first = message.partition("\n")[0]
    if keys := re.match(r"Unimplemented keys: \[(.*)\]", first):
        return f"keywords that cannot be kept: {keys[1].replace(chr(34), '')}"
    matches = ((re.search(pattern, first, re.IGNORECASE), words) for pattern, words in _WORDS)
    said = next((match.expand(words) for match, words in matches if match), first)
    return said.removeprefix("Unsatisfiable schema: ")


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
