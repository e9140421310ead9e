"""From a spec to the text that llguidance compiles."""

import json

from llguidance import LLMatcher

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.grammar import JSON_STYLE, GrammarSpec

MAX_SOURCE_BYTES = 256 << 10
MAX_CHOICES = 4096


def llguidance_source(spec: GrammarSpec) -> str:
    """Return llguidance's form of `spec`; raises `InvalidGrammar` for what is not even of its kind's shape."""
    size = len(spec.source.encode(errors="surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        raise InvalidGrammar(f"the {spec.kind} has {size} bytes; allowed: at most {MAX_SOURCE_BYTES}")
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
    # as a schema's enum would, but without quotes; lark reads string literals as JSON does
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(choice) for choice in choices))


def _parsed(source: str, kind: str) -> object:
    try:
        parsed: object = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"the {kind} is not JSON: {error}") from error
    return parsed


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
