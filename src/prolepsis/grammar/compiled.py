"""One grammar, ready to follow any number of samples."""

from collections.abc import Callable, Sequence

import structlog
from llguidance import LLMatcher

from prolepsis.grammar.deep_stack import on_deep_stack
from prolepsis.grammar.matcher import Matcher

log = structlog.get_logger(__name__)


class CompiledGrammar:
    """Holds the parser at the start of an answer; matchers work on copies, which share the tables of its lexer.

    The tables grow with what copies read, up to a limit. Where they are full, `renew` starts with empty ones, so no
    sample fails for what others made the lexer learn. A sample that fills empty ones by itself fails, and costs one
    renewal. Matchers and `renew` belong to one thread.
    """

    def __init__(self, make: Callable[[], LLMatcher], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.start = make()
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self.can_rollback = True
        """Whether the library can take tokens of this grammar back."""
        self._make = make

    def matcher(self, *, ignore_eos: bool = False) -> Matcher:
        """Return a matcher at the start of an answer."""
        return Matcher(self, ignore_eos=ignore_eos)

    def renew(self, used: LLMatcher) -> LLMatcher:
        """Return a start other than `used`, whose copies cannot go on: made now, or for another sample before."""
        if self.start is used:
            log.info("grammar_renewed")
            self.start = on_deep_stack(self._make)
        return self.start
