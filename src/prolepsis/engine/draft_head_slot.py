"""A slot of an engine for a draft head, and how a head is replaced while requests are served.

A head is loaded off the engine thread, with K/V and page marks of its own, and activated between two steps. So nothing
that one head wrote is read by the next. Pages filled before are stale to it (`engine.drafting.proposers.head_slots`):
requests in flight have its drafts from their next page on; the prefix index is emptied, so new requests do not find
such pages.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import count
from threading import Lock

import structlog

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import HeadSwapped
from prolepsis.core.errors import EngineDead
from prolepsis.core.messages import SwapHead
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.proposers.head import HeadProposer
from prolepsis.engine.hidden_states import HiddenStateRouter
from prolepsis.engine.models.protocol import TargetModel
from prolepsis.engine.runner import require_features

log = structlog.get_logger(__name__)


class DraftHeadSlot:
    """The head of one engine. `load` and `close` may be called from any thread, the rest from the engine's only."""

    def __init__(
        self,
        find: Callable[[str], HeadProposer | None],
        model: TargetModel,
        head: HeadProposer | None = None,
        *,
        proposer: HeadProposerName = DRAFT_HEAD,
    ) -> None:
        """`find` loads and checks a head by name; it raises `ModelError` or `MemoryPlanError`. `head`: the first."""
        self.head = head
        self.proposer = proposer
        self._find = find
        self._model = model
        self._waiting: dict[int, tuple[HeadProposer | None, Future[HeadSwapped]]] = {}
        self._tickets = count(1)
        self._closing = Lock()
        self._closed = False

    @property
    def label(self) -> str | None:
        return self.head.label if self.head is not None else None

    def copy_page(self, source: int, target: int) -> None:
        """Follow the target's cache: one page was copied to another."""
        if self.head is not None:
            self.head.copy_page(source, target)

    def clear_page(self, page: int) -> None:
        """Follow the target's cache: one page was filled with zeros."""
        if self.head is not None:
            self.head.clear_page(page)

    def load(self, name: str) -> tuple[SwapHead, Future[HeadSwapped]]:
        """Load a head; return the message that activates it, and the future result. Takes a second or so.

        Raises `ModelError` if the head cannot be used, `MemoryPlanError` if its caches do not fit.
        """
        head = self._find(name)
        if head is not None:
            require_features(self._model)
        done = Future[HeadSwapped]()
        with self._closing:
            if self._closed:
                raise EngineDead("the engine is closed")
            message = SwapHead(head.label if head is not None else "none", next(self._tickets), self.proposer)
            self._waiting[message.ticket] = (head, done)
        return message, done

    def activate(
        self, message: SwapHead, proposers: ProposerSet, hidden_states: HiddenStateRouter, step: int
    ) -> Callable[[], None] | None:
        """Replace the head by the loaded one; return a call that sets the result, None if the caller gave up."""
        head, done = self._waiting.pop(message.ticket, (None, None))
        if done is None or not done.set_running_or_notify_cancel():
            return None
        previous, old, self.head = self.label, self.head, head
        proposers.exchange(self.proposer, head)
        hidden_states.exchange(old, head)
        log.info("draft_head_swapped", proposer=self.proposer, previous=previous, current=self.label, step=step)
        return partial(done.set_result, HeadSwapped(previous, self.label, step))

    def close(self, error: EngineDead) -> None:
        """Activate no further head: callers that wait get `error`."""
        with self._closing:
            self._closed = True
            left, self._waiting = list(self._waiting.values()), {}
        for _, done in left:
            if done.set_running_or_notify_cancel():
                done.set_exception(error)
