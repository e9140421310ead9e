"""Calls that recurse deeply inside a library, on a thread whose stack holds them.

llguidance follows chains of names (rules, terminals, `$ref`) by recursion; where the stack ends, so does the process.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from prolepsis.core.errors import GrammarFailed

if TYPE_CHECKING:
    from prolepsis.grammar.grammars import CompiledGrammar

T = TypeVar("T")

STACK_BYTES = 256 << 20
"""Reserved, not used: the longest chain within the limits of `source` takes about a tenth of it."""

_sizing = threading.Lock()


def on_deep_stack(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises, after running it on a thread of its own."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # handed to the caller, whatever it is
            done.set_exception(error)

    thread = threading.Thread(target=run, name="grammar", daemon=True)
    with _sizing:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return done.result()


_TABLES_FULL = "too many states"
"""In the library's words: the lexer that a grammar's samples share has as many states as it may."""
_SPARE_RENEWALS = 8  # of one sample beyond one a token: each compiles the grammar again while the engine waits


class Matcher:
    """Follows one sample through its grammar: `advance` commits tokens, everything else only asks.

    Each question takes a `path`, drafted tokens that follow the committed ones; its answer depends on those two and on
    nothing asked before. Inside, the library's parser stands wherever the last question led it and moves from there, so
    walking down a draft costs one step a token; grammars that cannot take tokens back are read again from their start.
    Ending tokens end the grammar here and never enter the parser. Every method raises `GrammarFailed` where the library
    gives up (a limit, or a token that the grammar does not allow). One thread at a time.
    """

    def __init__(self, grammar: "CompiledGrammar", *, ignore_eos: bool = False) -> None:
        self._grammar = grammar
        self._start = grammar.start
        self._parser = grammar.start.deep_copy()
        self._vocab_size = grammar.vocab_size
        self._eos = grammar.eos_token_ids
        self._ignore_eos = ignore_eos
        self._committed: list[int] = []  # tokens the parser took for good
        self._ahead: list[int] = []  # tokens the parser took beyond the committed ones
        self._forced: tuple[int, ...] | None = None  # that must follow the committed ones, once asked for
        self._ended = False  # by a committed ending token
        self._is_alone = False  # its tables were empty when it began to look for the answer it now looks for
        self._num_renewals = 0

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit `tokens`; those behind the grammar's end are ignored."""
        self._ended |= self._move(tokens)
        self._committed += self._ahead
        self._ahead.clear()
        self._forced = None

    def is_over(self, path: Sequence[int] = ()) -> bool:
        """Say whether nothing may follow `path`: the grammar is complete and cannot go on, or an ending token came."""
        over = self._move(path) or self._parser.is_stopped()
        self._check()  # a parser that failed before calls itself stopped
        return over

    def is_accepting(self, path: Sequence[int] = ()) -> bool:
        """Say whether the answer may end after `path`."""
        if self.is_over(path):
            return True
        return self._ask(lambda parser: parser.is_accepting())

    def mask(self, path: Sequence[int] = ()) -> NDArray[np.bool_]:  # [V]
        """Return which tokens may follow `path`; never none.

        Ending tokens may where the answer may end, unless they are ignored and another token may follow. Bytes that the
        grammar forces come in the tokenizer's own way of writing them only.
        """
        if self.is_over(path):
            return self._only_ends()
        bits = self._ask(lambda parser: parser.compute_bitmask())
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)
        if self._ignore_eos and self._eos:
            ends = mask[list(self._eos)]
            mask[list(self._eos)] = False
            if not mask.any():
                mask[list(self._eos)] = ends
        return mask

    def accepted(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, a chain after the committed ones, stay inside the grammar.

        A token counted here may still be masked: where bytes are forced further down, and it spells them in another way
        than the tokenizer would.
        """
        if self.is_over() or not tokens:
            return 0
        for i, (token, forced) in enumerate(zip(tokens, self.forced(), strict=False)):
            if token != forced:
                return i
        first_end = next((i for i, token in enumerate(tokens) if token in self._eos), len(tokens))
        chain = list(tokens[:first_end])
        count = self._ask(lambda parser: parser.validate_tokens(chain)) if chain else 0
        if count == first_end < len(tokens) and not self._ignore_eos and not self.is_over(tokens[:first_end]):
            count += self.is_accepting(tokens[:first_end])
        return count

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow the committed ones, one after the other, as far as that is certain."""
        if self._forced is None:
            self._forced = () if self.is_over() else tuple(self._ask(lambda parser: parser.compute_ff_tokens()))
        return self._forced

    def _move(self, path: Sequence[int]) -> bool:
        """Let the parser stand after `path`, or where the grammar ends on it; return whether an ending token came."""
        if self._ended:
            return True
        ahead = self._ahead
        common = 0
        while common < min(len(ahead), len(path)) and ahead[common] == path[common]:
            common += 1
        if common < len(ahead):
            self._go_back(len(ahead) - common)
        for token in path[common:]:
            if token in self._eos:
                return True
            if self._parser.is_stopped():
                break
            self._ask(lambda parser, token=token: parser.consume_token(token))  # type: ignore[misc]
            ahead.append(token)
        return False

    def _go_back(self, num_tokens: int) -> None:
        del self._ahead[-num_tokens:]
        if self._grammar.can_rollback:
            self._parser.rollback(num_tokens)
        else:
            self._read_again()
        self._recover()

    def _ask(self, question: Callable[[LLMatcher], T]) -> T:
        """Return the parser's answer; where it fails for full tables, that of a parser with empty ones."""
        answer = question(self._parser)
        while self._parser.is_error() and self._renewed():
            answer = question(self._parser)
        self._check()
        self._is_alone = False
        return answer

    def _recover(self) -> None:
        while self._parser.is_error() and self._renewed():
            pass
        self._check()

    def _renewed(self) -> bool:
        """Start again where the parser failed for what other samples left in the tables it shares; say whether so."""
        full = _TABLES_FULL in self._parser.get_error()
        if not full or self._is_alone or self._num_renewals >= _SPARE_RENEWALS + len(self._committed):
            return False
        self._num_renewals += 1
        self._is_alone = self._grammar.start is self._start  # then `renew` makes one that nobody has used
        self._start = self._grammar.renew(self._start)
        self._read_again()
        return True

    def _read_again(self) -> None:
        self._parser = self._start.deep_copy()
        self._parser.consume_tokens([*self._committed, *self._ahead])

    def _only_ends(self) -> NDArray[np.bool_]:
        mask = np.zeros(self._vocab_size, np.bool_)
        mask[list(self._eos)] = True
        return mask

    def _check(self) -> None:
        if self._parser.is_error():
            message = self._parser.get_error().partition("\n")[0]
            raise GrammarFailed(f"the grammar gave up after {len(self._committed)} tokens: {message}")
