"""Where an engine's draft head sits, and how another takes its place while requests are served.

A head is loaded beside the engine thread, with K/V and page marks of its own, and put in between two steps. So what one
head wrote is out of reach of the next. Pages filled before are not its own (`spec.proposers.head_slots`): requests in
flight have its drafts from their next page on; the prefix index is emptied, so that new ones do not find such pages.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Lock

import structlog

from prolepsis.core.errors import EngineDead
from prolepsis.core.messages import SwapHead
from prolepsis.engine.client import HeadSwapped
from prolepsis.engine.hidden_states import Showing
from prolepsis.engine.runner import require_features
from prolepsis.models.protocol import TargetModel
from prolepsis.spec.proposers.head import Head
from prolepsis.spec.selection import ProposerSet

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Loaded:
    head: Head | None
    done: Future[HeadSwapped]


class HeadBay:
    """The head of one engine. `prepare` and `close` may be called from any thread, the rest from the engine's only."""

    def __init__(self, load: Callable[[str], Head | None], model: TargetModel, head: Head | None = None) -> None:
        """`load` finds, loads and checks a head by name; it raises `ModelError`. `head` is the first one."""
        self.head = head
        self._load = load
        self._model = model
        self._waiting: dict[int, _Loaded] = {}
        self._tickets = count(1)
        self._closing = Lock()
        self._closed = False

    @property
    def label(self) -> str | None:
        """NAME@VERSION of the head."""
        return self.head.label if self.head is not None else None

    def copy_page(self, source: int, target: int) -> None:
        """Follow the target's cache: one page was copied to another."""
        if self.head is not None:
            self.head.copy_page(source, target)

    def prepare(self, name: str) -> tuple[SwapHead, Future[HeadSwapped]]:
        """Load a head; return the message that puts it in, and what is set once it is. Takes a second or so.

        Raises `ModelError` where it cannot be used.
        """
        head = self._load(name)
        if head is not None:
            require_features(self._model)
        loaded = _Loaded(head, Future())
        with self._closing:
            if self._closed:
                raise EngineDead("the engine is closed")
            message = SwapHead(head.label if head is not None else "none", next(self._tickets))
            self._waiting[message.ticket] = loaded
        return message, loaded.done

    def put(self, message: SwapHead, proposers: ProposerSet, showing: Showing, step: int) -> Callable[[], None] | None:
        """Exchange the head for the loaded one; return what tells whoever asked, None where nobody waits any more."""
        loaded = self._waiting.pop(message.ticket, None)
        if loaded is None or not loaded.done.set_running_or_notify_cancel():
            return None
        previous, old, self.head = self.label, self.head, loaded.head
        proposers.exchange(Head.name, loaded.head)
        showing.exchange(old, loaded.head)
        log.info("draft_head_swapped", previous=previous, current=self.label, step=step)
        return partial(loaded.done.set_result, HeadSwapped(previous, self.label, step))

    def close(self, error: EngineDead) -> None:
        """Tell whoever waits that no head is put in any more."""
        with self._closing:
            self._closed = True
            left, self._waiting = list(self._waiting.values()), {}
        for loaded in left:
            if loaded.done.set_running_or_notify_cancel():
                loaded.done.set_exception(error)
