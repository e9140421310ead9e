"""Compiles grammar specs for one tokenizer with llguidance, each spec once."""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from weakref import WeakValueDictionary

import numpy as np
import structlog
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import JSON_STYLE, GrammarKind, GrammarSpec
from prolepsis.grammar.matcher import CompiledGrammar, on_deep_stack

log = structlog.get_logger(__name__)

MAX_SOURCE_BYTES: dict[GrammarKind, int] = {
    "json_schema": 128 << 10,
    "choice": 128 << 10,
    "regex": 32 << 10,
    "lark": 64 << 10,
}
"""The library's time and stack grow with the longest chain of names that fits."""
MAX_CHOICES = 4096
MAX_COMPILED = 128
LIMITS = LLParserLimits(
    max_lexer_states=50_000, max_grammar_size=200_000, max_items_in_row=20_000, verbose_errors=False
)
"""Limits of one grammar, relative to the library's own: a fifth of the lexer's memory (up to 2 kB a state), two fifths
of the size, ten times the alternatives at one place: 2,000 are too few for an object of 1,000 optional properties."""
_TRIED_TOKENS = 4

_ALLOWED: dict[GrammarKind, str] = {
    "json_schema": "allowed: JSON Schema 2020-12 or earlier, with the keywords and formats that llguidance implements",
    "choice": "allowed: a JSON list of non-empty strings",
    "regex": "allowed: a regular expression without look-around and back-references, matched from start to end",
    "lark": "allowed: llguidance's dialect of lark, with a rule named start",
}


_EMBEDDED = "failed to compile JSON schema: "


def _refusal(kind: GrammarKind, error: str) -> tuple[GrammarKind, str]:
    """Return what llguidance cannot compile, which may be a schema inside, and why: its first line, and of a regular
    expression the line that says what is wrong with it.
    """
    first, *more = error.splitlines()
    if _EMBEDDED in first:
        kind, first = "json_schema", first.partition(_EMBEDDED)[2]
    detail = next((line.removeprefix("error: ") for line in more if line.startswith("error: ")), "")
    return kind, f"{first.removesuffix(':')}: {detail}" if detail else first


def llguidance_source(spec: GrammarSpec) -> str:
    """Return llguidance's form of `spec`; raises `InvalidGrammar` if the source does not have the form of its kind."""
    size, limit = len(spec.source.encode(errors="surrogatepass")), MAX_SOURCE_BYTES[spec.kind]
    if size > limit:
        raise InvalidGrammar(f"the {spec.kind} has {size} bytes; allowed: at most {limit}")
    try:
        match spec.kind:
            case "json_schema":
                return _json_schema(spec.source)
            case "choice":
                return _choice(spec.source)
            case "regex":
                return LLMatcher.grammar_from_regex(spec.source)
            case "lark":
                return LLMatcher.grammar_from_lark(spec.source)
    except ValueError as error:  # a lone surrogate, which UTF-8 cannot carry
        raise InvalidGrammar(f"the {spec.kind} is not usable text: {error}") from error


def lark_terminal(pattern: str) -> str:
    """Return a regex as a lark grammar holds it, written as it is alone; raises `InvalidGrammar` as that does."""
    whole = json.loads(llguidance_source(GrammarSpec("regex", pattern)))
    return str(whole["grammars"][0]["lark_grammar"]).removeprefix("start: ").rstrip()


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
    # lark reads string literals as JSON does; one terminal is one item of the parser, however many choices it has
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


class Grammars:
    """Compiles specs for one tokenizer. Several threads may use it: one compiles a spec, the others wait for it.

    The `max_compiled` most recently used grammars are kept, and so is every grammar that is still referenced. Hold the
    result until the request is accepted; the engine thread then reuses it.
    """

    def __init__(
        self,
        tokenizer_json: Callable[[], str],  # in the format of the tokenizers library; called once, at the first spec
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        max_compiled: int = MAX_COMPILED,
        limits: LLParserLimits = LIMITS,
    ) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._max_compiled = max_compiled
        self._limits = limits
        self._lock = threading.Lock()
        self._recent: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._held: WeakValueDictionary[GrammarSpec, CompiledGrammar] = WeakValueDictionary()
        self._in_work: dict[GrammarSpec, Future[CompiledGrammar]] = {}
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_lock = threading.Lock()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Return the compiled grammar, at once if it is known.

        Raises `InvalidGrammar` with the reason for a spec that does not compile or exceeds the limits.
        """
        with self._lock:
            known = self._held.get(spec)
            if known is not None:
                self._keep(spec, known)
                return known
            work = self._in_work.get(spec)
            mine = work is None
            if work is None:
                work = self._in_work[spec] = Future()
        if mine:
            self._work(spec, work)
        return work.result()

    def _work(self, spec: GrammarSpec, work: "Future[CompiledGrammar]") -> None:
        try:
            compiled = self._compile(spec)
        except BaseException as error:  # passed on to every thread that waits for this spec
            with self._lock:
                del self._in_work[spec]
            work.set_exception(error)
            return
        with self._lock:
            del self._in_work[spec]
            self._keep(spec, compiled)
        work.set_result(compiled)

    def _keep(self, spec: GrammarSpec, compiled: CompiledGrammar) -> None:
        self._held[spec] = self._recent[spec] = compiled
        self._recent.move_to_end(spec)
        while len(self._recent) > self._max_compiled:
            self._recent.popitem(last=False)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        source, tokenizer, limits = llguidance_source(spec), self._ready_tokenizer(), self._limits
        started = time.perf_counter()
        compiled, probe = on_deep_stack(
            lambda: _tried(
                lambda: LLMatcher(tokenizer, source, log_level=0, limits=limits), self._vocab_size, self._eos
            )
        )
        if probe.is_error():
            kind, reason = _refusal(spec.kind, probe.get_error())
            raise InvalidGrammar(f"the {kind} cannot be compiled: {reason}; {_ALLOWED[kind]}")
        log.debug("grammar_compiled", kind=spec.kind, ms=round(1e3 * (time.perf_counter() - started), 1))
        return compiled

    def _ready_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                try:
                    eos = list(self._eos) or None
                    self._tokenizer = LLTokenizer(self._tokenizer_json(), n_vocab=self._vocab_size, eos_token=eos)
                except ValueError as error:
                    raise InvalidGrammar(f"grammars cannot be used with this model's tokenizer: {error}") from error
            return self._tokenizer


def _tried(
    make: Callable[[], LLMatcher], vocab_size: int, eos_token_ids: Sequence[int]
) -> tuple[CompiledGrammar, LLMatcher]:
    """Return a grammar, and a copy that consumed some first tokens; the copy is in error if the grammar is unusable.

    This also fills the lexer's tables, which copies share, before the engine needs them.
    """
    compiled = CompiledGrammar(make, vocab_size, eos_token_ids)
    for place in (0, -1):  # always the lowest allowed token, then always the highest
        probe = compiled.start.deep_copy()
        for _ in range(_TRIED_TOKENS):
            if probe.is_error() or probe.is_stopped():
                break
            allowed = _allowed(probe, vocab_size, eos_token_ids)
            if not len(allowed):
                break
            probe.consume_token(int(allowed[place]))
        if probe.is_error():
            return compiled, probe
    compiled.can_rollback = _can_rollback(compiled.start.deep_copy())
    return compiled, probe


def _allowed(probe: LLMatcher, vocab_size: int, eos_token_ids: Sequence[int]) -> NDArray[np.int64]:
    """Return the tokens that may follow, without ending tokens."""
    mask = np.unpackbits(np.frombuffer(probe.compute_bitmask(), np.uint8), count=vocab_size, bitorder="little")
    mask[list(eos_token_ids)] = 0
    return np.flatnonzero(mask)


def _can_rollback(probe: LLMatcher) -> bool:
    """Say whether the grammar can roll back tokens, by a trial on `probe`, which is not used afterwards."""
    mask = np.unpackbits(np.frombuffer(probe.compute_bitmask(), np.uint8), bitorder="little")
    allowed = np.flatnonzero(mask)
    return not len(allowed) or probe.try_consume_tokens([int(allowed[-1])]) == 0 or probe.rollback(1)
