"""Compiles grammar specs for one tokenizer with llguidance, each spec once."""

import json
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

import numpy as np
import structlog
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import JSON_STYLE, GrammarSpec
from prolepsis.engine.text.grammar.matcher import CompiledGrammar, is_panic, on_deep_stack
from prolepsis.engine.text.grammar.refusals import ALLOWED, TABLES_FULL, plain, refusal
from prolepsis.engine.text.grammar.source import llguidance_source
from prolepsis.engine.text.grammar.vocabulary import GrammarVocabulary

log = structlog.get_logger(__name__)

MAX_COMPILED = 128
LIMITS = LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000, max_items_in_row=8_000, verbose_errors=False)
"""Limits of one grammar, relative to the library's own: a fifth of the lexer's memory (up to 2 kB a state), two fifths
of the size, four times the alternatives at one place: 2,000 are too few for an object of 1,000 optional properties.
With 20,000 one of 4,000 took 10 s, in calls of up to a second each that hold the interpreter."""


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
        self._vocabulary: GrammarVocabulary | None = None
        self._vocabulary_lock = threading.Lock()

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
        vocabulary, started = self._ready_vocabulary(), time.perf_counter()
        if spec.kind == "lark":
            spec = replace(spec, source=vocabulary.lark(spec.source))
        source = llguidance_source(spec, partial(self._covers_none, vocabulary.tokenizer))
        try:
            compiled = on_deep_stack(lambda: self._tried(spec, vocabulary, source))
        except BaseException as error:
            if not is_panic(error):
                raise
            reason = plain("panic")
            raise InvalidGrammar(f"the {spec.kind} cannot be compiled: {reason}; {ALLOWED[spec.kind]}") from error
        log.debug("grammar_compiled", kind=spec.kind, ms=round(1e3 * (time.perf_counter() - started), 1))
        return compiled

    def _tried(self, spec: GrammarSpec, vocabulary: GrammarVocabulary, source: str) -> CompiledGrammar:
        """Return a grammar that walks went through to an end; they also fill the lexer's tables, which copies share."""
        tokenizer = vocabulary.tokenizer
        with self._vocabulary_lock:
            numbers = vocabulary.numbers if spec.kind in ("json_schema", "lark") else None
        compiled = CompiledGrammar(
            lambda: LLMatcher(tokenizer, source, log_level=0, limits=self._limits),
            self._vocab_size,
            self._eos,
            numbers,
        )
        start = compiled.start
        if start.is_error():
            kind, reason = refusal(spec, start.get_error())
            raise InvalidGrammar(f"the {kind} cannot be compiled: {reason}; {ALLOWED[kind]}")
        failed = Walks(tokenizer, self._vocab_size, self._eos).failed(start)
        if failed is not None:
            text, error = failed
            where = f"behind {text!r}" if text else "at its start"
            raise InvalidGrammar(f"the {spec.kind} cannot be compiled: {where} {plain(error)}; {ALLOWED[spec.kind]}")
        probe = start.deep_copy()  # on which rolling back is tried
        mask = np.unpackbits(np.frombuffer(probe.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(mask)
        compiled.can_rollback = (
            not len(allowed) or probe.try_consume_tokens([int(allowed[-1])]) == 0 or probe.rollback(1)
        )
        return compiled

    def _covers_none(self, tokenizer: LLTokenizer, pattern: str, names: Collection[str]) -> bool:
        """Return whether `pattern` matches no name but `names`, by an object in which all of them have been written."""
        null = {"type": "null"}
        schema = {
            "type": "object",
            "properties": dict.fromkeys(names, null),
            "required": list(names),
            "patternProperties": {pattern: null},
            "additionalProperties": False,
        }
        source = LLMatcher.grammar_from_json_schema(schema, overrides=JSON_STYLE)  # type: ignore[arg-type]
        probe = LLMatcher(tokenizer, source, log_level=0, limits=self._limits)
        written = json.dumps(dict.fromkeys(names), ensure_ascii=False).removesuffix("}")
        probe.consume_tokens(tokenizer.tokenize_bytes(f"{written}, ".encode()))
        follows = any(probe.compute_bitmask())
        return probe.is_error() or not follows

    def _ready_vocabulary(self) -> GrammarVocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                try:
                    self._vocabulary = GrammarVocabulary(self._tokenizer_json(), self._vocab_size, self._eos)
                except ValueError as error:
                    raise InvalidGrammar(f"grammars cannot be used with this model's tokenizer: {error}") from error
            return self._vocabulary


NUM_WALKS = 12
MAX_STEPS = 96  # tokens of a walk
MAX_MASKS = 48  # places of all walks at which every token is looked at; that takes up to a millisecond
_LIKELY = b'"}],: 0123456789truefalsn-.e'
"""Bytes that bring an answer of JSON to its end; of others there are too many."""


class Walks:
    """Finds places of a grammar behind which nothing can follow, by walks from its start to an end, always the same."""

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos = list(eos_token_ids)
        single = {bytes([byte]): tokenizer.tokenize_bytes(bytes([byte])) for byte in _LIKELY}
        self._likely = [tokens[0] for tokens in single.values() if len(tokens) == 1]

    def failed(self, start: LLMatcher) -> tuple[str, str] | None:
        """Return the text of a walk on which the grammar gave up or had no token left, and the error; None: none."""
        rng, num_masks = random.Random(0), 0
        for number in range(NUM_WALKS):
            stops = 0.02 if number % 3 == 0 else 0.3
            walk, tokens = start.deep_copy(), list[int]()
            for _ in range(MAX_STEPS):
                if walk.is_stopped() or walk.is_error() or (walk.is_accepting() and rng.random() < stops):
                    break
                likely = rng.sample(self._likely, len(self._likely))
                token = next((candidate for candidate in likely if walk.validate_tokens([candidate])), None)
                if token is None:
                    if num_masks == MAX_MASKS:
                        break
                    num_masks += 1
                    bits = np.frombuffer(walk.compute_bitmask(), np.uint8)
                    mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
                    mask[self._eos] = 0
                    allowed = np.flatnonzero(mask)
                    token = int(rng.choice(allowed)) if len(allowed) and not walk.is_error() else None
                if token is None and not walk.is_error():
                    if walk.is_accepting():
                        break
                    return self._text(tokens), "nothing can follow"
                if token is None:
                    break
                walk.consume_token(token)
                tokens.append(token)
            if walk.is_error():
                error = walk.get_error()
                # walks share the lexer's tables, which sequences renew
                return None if TABLES_FULL in error else (self._text(tokens), error)
        return None

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode_str(list(tokens))[-80:]
