"""Compiled grammars and their matchers: one matcher follows one sequence through its grammar.

llguidance follows chains of names (rules, terminals, `$ref`) by recursion, and a stack overflow ends the process. Deep
calls therefore run on a thread with a large stack (`on_deep_stack`).
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import numpy as np
import structlog
from llguidance import LLMatcher
from numpy.typing import NDArray

from prolepsis.core.errors import GrammarFailed
from prolepsis.engine.text.grammar.finite_numbers import MAX_DIGITS, FiniteNumbers
from prolepsis.engine.text.grammar.refusals import SPENT, TABLES_FULL, plain

log = structlog.get_logger(__name__)

T = TypeVar("T")

STACK_BYTES = 256 << 20
"""Reserved, mostly unused: the longest chain within the limits of a source takes about a tenth of it."""

_SPARE_RENEWALS = 8  # per sequence, beyond one per token: each compiles the grammar again while the engine waits
_READ_AT_ONCE = 256
"""Tokens between two masks: only these renew what the lexer may spend on states, and a text may spend all of it."""

_sizing = threading.Lock()


def is_panic(error: BaseException) -> bool:
    """Return whether the library itself failed; it raises that past `Exception`."""
    return type(error).__name__ == "PanicException"


def on_deep_stack(work: Callable[[], T]) -> T:
    """Run `work` on a thread of its own; return its result or raise its exception."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # passed on to the caller
            done.set_exception(error)

    thread = threading.Thread(target=run, name="grammar", daemon=True)
    with _sizing:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return done.result()


class CompiledGrammar:
    """A parser at the start of an answer; matchers work on copies, which share the tables of its lexer.

    The tables grow with the text that the copies read, up to a limit. When they are full, `renew` starts with empty
    ones, so that no sequence fails because of others. A sequence that fills empty tables alone fails after one renewal.
    Matchers and `renew` belong to one thread.
    """

    def __init__(
        self,
        make: Callable[[], LLMatcher],
        vocab_size: int,
        eos_token_ids: Sequence[int],
        numbers: FiniteNumbers | None = None,
    ) -> None:
        """`numbers`: keeps the numbers of an answer finite."""
        self.start = make()
        self.numbers = numbers
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self.can_rollback = True  # whether the library can roll back tokens of this grammar
        self._make = make

    def matcher(self, *, ignore_eos: bool = False) -> "Matcher":
        return Matcher(self, ignore_eos=ignore_eos)

    def renew(self, used: LLMatcher) -> LLMatcher:
        """Return a start other than `used`, whose tables are full: a new one, or one made for another sequence."""
        if self.start is used:
            log.info("grammar_renewed")
            self.start = on_deep_stack(self._make)
        return self.start


class Matcher:
    """Follows one sequence through its grammar: `advance` commits tokens, all other methods only query.

    A query takes a `path`, the drafted tokens after the committed ones; its result depends on these tokens only, not on
    earlier queries. Internally the library's parser stays where the last query left it and moves on from there, so that
    a walk down a draft costs one step per token; grammars without rollback are read again from their start. Ending
    tokens end the grammar here and never enter the parser. Every method raises `GrammarFailed` if the library fails (at
    a limit, or at a token that the grammar does not allow). One thread at a time.
    """

    def __init__(self, grammar: CompiledGrammar, *, ignore_eos: bool = False) -> None:
        self._grammar = grammar
        self._start = grammar.start
        self._parser = grammar.start.deep_copy()
        self._vocab_size = grammar.vocab_size
        self._numbers = grammar.numbers
        self._eos = grammar.eos_token_ids
        self._ignore_eos = ignore_eos
        self._committed: list[int] = []  # tokens that the parser has consumed for good
        self._ahead: list[int] = []  # tokens that the parser has consumed beyond the committed ones
        self._forced: tuple[int, ...] | None = None  # tokens that must follow the committed ones, once computed
        self._ended = False  # by a committed ending token
        self._is_alone = False  # its tables were empty when the current query began
        self._num_renewals = 0
        self._at_once = _READ_AT_ONCE

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit `tokens`; tokens after the grammar's end are ignored."""
        self._ended |= self._move(tokens)
        self._committed += self._ahead
        self._ahead.clear()
        self._forced = None

    def is_over(self, path: Sequence[int] = ()) -> bool:
        """Say whether `path` must be the end: the grammar is complete and cannot continue, or an ending token came."""
        over = self._move(path) or self._parser.is_stopped()
        self._check()  # a parser that has failed reports itself as stopped
        return over

    def is_accepting(self, path: Sequence[int] = ()) -> bool:
        if self.is_over(path):
            return True
        return self._ask(lambda parser: parser.is_accepting())

    def is_whole(self, path: Sequence[int]) -> bool:
        """Say whether the answer may end after `path` even without an ending token that is its last."""
        return self.is_accepting(path[:-1] if path and path[-1] in self._eos else path)

    def mask(self, path: Sequence[int] = ()) -> NDArray[np.bool_]:  # [V]
        """Return the tokens that may follow `path`; there is always at least one.

        Ending tokens are allowed where the answer may end, unless they are ignored and another token may follow. Bytes
        that the grammar forces are allowed only in the tokenizer's own spelling.
        """
        if self.is_over(path):
            only_ends = np.zeros(self._vocab_size, np.bool_)
            only_ends[list(self._eos)] = True
            return only_ends
        bits = self._ask(lambda parser: parser.compute_bitmask())
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)
        if self._ignore_eos and self._eos:
            ends = mask[list(self._eos)]
            mask[list(self._eos)] = False
            if not mask.any():
                mask[list(self._eos)] = ends
        last = path[-1:] or self._committed[-1:]
        if self._numbers is None or not last or not self._numbers.concern(last[0]):
            return mask
        return self._numbers.bounded(mask, [*self._committed[-2 * MAX_DIGITS :], *path])

    def accepted(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, a chain after the committed ones, the grammar accepts.

        A token counted here may still be masked, if it spells bytes that are forced further down in another way than
        the tokenizer.
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
        """Return the chain of tokens that must follow the committed ones, up to the first choice."""
        if self._forced is None:
            self._forced = () if self.is_over() else tuple(self._ask(lambda parser: parser.compute_ff_tokens()))
        return self._forced

    def _move(self, path: Sequence[int]) -> bool:
        """Move the parser behind `path`, or to the grammar's end on it; return whether an ending token came."""
        if self._ended:
            return True
        ahead = self._ahead
        common = 0
        while common < min(len(ahead), len(path)) and ahead[common] == path[common]:
            common += 1
        if common < len(ahead):
            num_tokens = len(ahead) - common
            del self._ahead[-num_tokens:]
            if self._grammar.can_rollback:
                self._parser.rollback(num_tokens)
            else:
                self._read_again()
            while self._parser.is_error() and self._renewed():
                pass
            self._check()
        for number, token in enumerate(path[common:], 1):
            if token in self._eos:
                return True
            if self._parser.is_stopped():
                break
            if number % self._at_once == 0:
                self._ask(lambda parser: parser.compute_bitmask())
            self._ask(lambda parser, token=token: parser.consume_token(token))  # type: ignore[misc]
            ahead.append(token)
        return False

    def _ask(self, question: Callable[[LLMatcher], T]) -> T:
        """Return the parser's answer; if it fails because of full tables, the answer of a parser with empty ones."""
        try:
            answer = question(self._parser)
            while self._parser.is_error() and self._renewed():
                answer = question(self._parser)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise GrammarFailed("the grammar gave up: it cannot be followed") from error
        self._check()
        self._is_alone = False
        return answer

    def _renewed(self) -> bool:
        """Start again if the parser failed because other sequences filled the shared tables; return whether it did.

        A parser may report the token at which its tables got full, so that another one is asked too.
        """
        probe = self._start.deep_copy()
        probe.compute_bitmask()
        error = self._parser.get_error() + probe.get_error()
        is_full, is_spent = TABLES_FULL in error, SPENT in error
        if not (is_full or is_spent) or self._is_alone or self._num_renewals >= _SPARE_RENEWALS + len(self._committed):
            return False
        self._num_renewals += 1
        self._at_once = 1 if is_spent else self._at_once  # as it is generated
        self._is_alone = self._grammar.start is self._start  # then `renew` makes an unused one
        self._start = self._grammar.renew(self._start)
        self._read_again()
        return True

    def _read_again(self) -> None:
        self._parser = self._start.deep_copy()
        tokens = [*self._committed, *self._ahead]
        for first in range(0, len(tokens), self._at_once):
            if first:
                self._parser.compute_bitmask()
            self._parser.consume_tokens(tokens[first : first + self._at_once])

    def _check(self) -> None:
        if self._parser.is_error():
            raise GrammarFailed(
                f"the grammar gave up after {len(self._committed)} tokens: {plain(self._parser.get_error())}"
            )
