"""From a spec to the text that llguidance compiles."""

import json

from llguidance import LLMatcher

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.grammar import JSON_STYLE, GrammarKind, GrammarSpec

MAX_SOURCE_BYTES: dict[GrammarKind, int] = {
    "json_schema": 128 << 10,
    "choice": 128 << 10,
    "regex": 32 << 10,
    "lark": 64 << 10,
}
"""The library's time and stack grow with the chains of names that fit."""
MAX_CHOICES = 4096


def llguidance_source(spec: GrammarSpec) -> str:
    """Return llguidance's form of `spec`; raises `InvalidGrammar` for what is not even of its kind's shape."""
    size, limit = len(spec.source.encode(errors="surrogatepass")), MAX_SOURCE_BYTES[spec.kind]
    if size > limit:
        raise InvalidGrammar(f"the {spec.kind} has {size} bytes; allowed: at most {limit}")
    try:
        return _made(spec)
    except ValueError as error:  # a lone surrogate, which UTF-8 cannot carry
        raise InvalidGrammar(f"the {spec.kind} is not usable text: {error}") from error


def _made(spec: GrammarSpec) -> str:
    match spec.kind:
        case "json_schema":
            return _json_schema(spec.source)
        case "choice":
            return _choice(spec.source)
        case "regex":
            return LLMatcher.grammar_from_regex(spec.source)
        case "lark":
            return LLMatcher.grammar_from_lark(spec.source)


def _json_schema(source: str) -> str:
    schema = _parsed(source, "json_schema")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidGrammar(f"the json_schema is {_shown(schema)}; allowed: a JSON object, or true for any JSON")
    return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_STYLE)  # type: ignore[arg-type]


def _choice(source: str) -> str:
    choices = _parsed(source, "choice")
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice for choice in choices):
        raise InvalidGrammar(f"the choice is {_shown(choices)}; allowed: a JSON list of non-empty strings")
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidGrammar(f"the choice has {len(choices)} strings; allowed: 1 to {MAX_CHOICES}")
    # lark reads string literals as JSON does; as one terminal they are one item of the parser, however many they are
    return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in choices))


def _parsed(source: str, kind: str) -> object:
    try:
        parsed: object = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"the {kind} is not JSON: {error}") from error
    return parsed


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
