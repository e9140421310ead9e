"""Compiled grammars of one model: made once each, kept while they are used and as long as they fit."""

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
from prolepsis.core.grammar import GrammarKind, GrammarSpec
from prolepsis.grammar.compiled import CompiledGrammar
from prolepsis.grammar.deep_stack import on_deep_stack
from prolepsis.grammar.source import llguidance_source

log = structlog.get_logger(__name__)

MAX_COMPILED = 128
LIMITS = LLParserLimits(
    max_lexer_states=50_000, max_grammar_size=200_000, max_items_in_row=20_000, verbose_errors=False
)
"""Of one grammar: a fifth of the library's memory for its lexer (up to 2 kB a state), two fifths of its size, ten times
its alternatives at one place: 2,000 are too few for an object of 1,000 optional properties."""
_TRIED_TOKENS = 4

_ALLOWED: dict[GrammarKind, str] = {
    "json_schema": "allowed: JSON Schema 2020-12 or earlier, with the keywords and formats that llguidance implements",
    "choice": "allowed: a JSON list of non-empty strings",
    "regex": "allowed: a regular expression without look-around and back-references, matched from start to end",
    "lark": "allowed: llguidance's dialect of lark, with a rule named start",
}


class Grammars:
    """Compiles specs for one tokenizer. Safe to use from several threads: each spec is compiled once, others wait.

    The `max_compiled` most recently used stay. One that somebody holds is found again even when it is no longer among
    them, so who compiles ahead of the engine thread and holds the result spares it that work.
    """

    def __init__(
        self,
        tokenizer_json: Callable[[], str],  # in the tokenizers library's own format; asked for once, at the first spec
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
        """Return the compiled grammar, at once where it is known.

        Raises `InvalidGrammar`, with what is wrong, for a spec that does not compile or exceeds the limits.
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
        except BaseException as error:  # contained: whoever else waits for this spec must hear of it
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
            reason = probe.get_error().partition("\n")[0]
            raise InvalidGrammar(f"the {spec.kind} cannot be compiled: {reason}; {_ALLOWED[spec.kind]}")
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
    """Return a grammar, and a copy that took some first tokens: in error where the grammar cannot be followed.

    It also fills the lexer's tables, which copies share, before the engine asks.
    """
    compiled = CompiledGrammar(make, vocab_size, eos_token_ids)
    for place in (0, -1):  # always the lowest token allowed, always the highest
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
    """Return the tokens that may follow, without ending ones."""
    mask = np.unpackbits(np.frombuffer(probe.compute_bitmask(), np.uint8), count=vocab_size, bitorder="little")
    mask[list(eos_token_ids)] = 0
    return np.flatnonzero(mask)


def _can_rollback(probe: LLMatcher) -> bool:
    """Say whether the grammar takes tokens back, by trying on a copy that nobody needs any more."""
    mask = np.unpackbits(np.frombuffer(probe.compute_bitmask(), np.uint8), bitorder="little")
    allowed = np.flatnonzero(mask)
    return not len(allowed) or probe.try_consume_tokens([int(allowed[-1])]) == 0 or probe.rollback(1)
