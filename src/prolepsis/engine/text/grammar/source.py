"""Grammar specs as llguidance reads them; schemas are prepared, also where lark embeds them."""

import json
import re

from llguidance import LLMatcher

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import JSON_STYLE, GrammarKind, GrammarSpec
from prolepsis.engine.text.grammar.closed import bounded
from prolepsis.engine.text.grammar.gbnf import read
from prolepsis.engine.text.grammar.json_schema import GUIDANCE, CoversNone, Schema, allowed_escapes, prepared
from prolepsis.engine.text.grammar.patterns import check_lark_repetitions, check_repetitions
from prolepsis.engine.text.grammar.refusals import plain, shortened
from prolepsis.engine.text.grammar.scannerless import lark as lark_of

MAX_SOURCE_BYTES: dict[GrammarKind, int] = {
    "json_schema": 512 << 10,
    "choice": 128 << 10,
    "regex": 32 << 10,
    "lark": 64 << 10,
}
"""The library's time and stack grow with the longest chain of names that fits. The schemas in a lark grammar have the
bound of schemas, all together."""
MAX_CHOICES = 4096
_GBNF = re.compile(r"^[ \t]*[A-Za-z][\w-]*[ \t]*::=", re.MULTILINE)  # a definition of llama.cpp's grammars
_EMBEDDED = re.compile(r"%json\s*(?=\{)")


def llguidance_source(spec: GrammarSpec, covers_none: CoversNone = lambda pattern, names: False) -> str:
    """Return llguidance's form of `spec`; raises `InvalidGrammar` if the source does not have the form of its kind."""
    try:
        _check_size(spec.source, "json_schema" if spec.kind == "lark" else spec.kind, spec.kind)
        match spec.kind:
            case "json_schema":
                schema = _parsed(spec.source, "json_schema")
                if schema is True:
                    schema = {}
                if not isinstance(schema, dict):
                    given = shortened(json.dumps(schema), 80)
                    raise InvalidGrammar(f"the json_schema is {given}; allowed: a JSON object, or true for any JSON")
                style = {**JSON_STYLE, "json_allowed_escapes": allowed_escapes(schema)}
                made = prepared(bounded(schema), lenient=False, covers_none=covers_none)
                return LLMatcher.grammar_from_json_schema(made, overrides=style)  # type: ignore[arg-type]
            case "choice":
                return _choice(spec.source)
            case "regex":
                check_repetitions(spec.source, "regex")
                return LLMatcher.grammar_from_regex(spec.source)
            case "lark":
                check_lark_repetitions(spec.source)
                return LLMatcher.grammar_from_lark(_with_prepared_schemas(spec.source, covers_none))
    except ValueError as error:  # a lone surrogate, which UTF-8 cannot carry
        raise InvalidGrammar(f"the {spec.kind} is not usable text: {plain(str(error))}") from error
    except TimeoutError as error:
        raise InvalidGrammar(f"the {spec.kind}'s patternProperties take too long to match with its names") from error
    except RecursionError as error:
        raise InvalidGrammar(f"the {spec.kind} is nested too deeply; allowed: some hundred levels") from error


def as_lark(grammar: str) -> str:
    """Return a grammar that is lark or GBNF as lark; raises `InvalidGrammar`, for GBNF in its own words."""
    if not _GBNF.search(grammar):
        return grammar
    _check_size(grammar, "lark", "grammar")
    try:
        return lark_of(read(grammar))
    except RecursionError as error:
        raise InvalidGrammar("the grammar is nested too deeply; allowed: some hundred levels") from error


def lark_terminal(pattern: str) -> str:
    """Return a regex as a lark grammar holds it, written as it is alone; raises `InvalidGrammar` as that does."""
    whole = json.loads(llguidance_source(GrammarSpec("regex", pattern)))
    return str(whole["grammars"][0]["lark_grammar"]).removeprefix("start: ").rstrip()


def _check_size(source: str, kind: GrammarKind, name: str) -> None:
    size, limit = len(source.encode(errors="surrogatepass")), MAX_SOURCE_BYTES[kind]
    if size > limit:
        raise InvalidGrammar(f"the {name} has {size} bytes; allowed: at most {limit}")


def _with_prepared_schemas(lark: str, covers_none: CoversNone) -> str:
    """Return a lark grammar with each schema that it embeds prepared; its own `x-guidance` stays."""
    parts, plain_parts, done, decoder = list[str](), list[str](), 0, json.JSONDecoder()
    for match in _EMBEDDED.finditer(lark):
        if match.start() < done:
            continue
        try:
            schema, end = decoder.raw_decode(lark, match.end())
        except ValueError:  # in a comment or a terminal, or for the library to refuse
            continue
        plain_parts.append(lark[done : match.end()])
        parts += [plain_parts[-1], json.dumps(_embedded(schema, covers_none), ensure_ascii=False)]
        done = end
    _check_size("".join([*plain_parts, lark[done:]]), "lark", "lark")
    return "".join([*parts, lark[done:]])


def _embedded(schema: Schema, covers_none: CoversNone) -> Schema:
    given = schema.get(GUIDANCE)
    guidance = given if isinstance(given, dict) else {}
    made = prepared(bounded(schema), lenient=bool(guidance.get("lenient")), covers_none=covers_none)
    return {**made, GUIDANCE: {"json_allowed_escapes": allowed_escapes(schema), **guidance}}


def _choice(source: str) -> str:
    choices = _parsed(source, "choice")
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice for choice in choices):
        raise InvalidGrammar(
            f"the choice is {shortened(json.dumps(choices), 80)}; allowed: a JSON list of non-empty strings"
        )
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidGrammar(f"the choice has {len(choices)} strings; allowed: 1 to {MAX_CHOICES}")
    # lark reads string literals as JSON does; one terminal is one item of the parser, however many choices it has
    return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in choices))


def _parsed(source: str, kind: str) -> object:
    try:
        parsed: object = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"the {kind} is not JSON: {error}") from error
    return parsed
