"""Logging for consoles or JSON. User text is never logged; lines that any client can cause are rate-limited."""

import io
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, MutableMapping
from typing import Literal, TextIO, cast

import structlog

from prolepsis.core.token_bucket import TokenBucket

PRIVATE = frozenset(
    {"prompt", "messages", "message_text", "content", "text", "prediction", "token_ids", "body", "stop"}
)
"""Keys whose values are replaced by their length: prompts and answers."""

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
Level = Literal["debug", "info", "warning", "error"]


class Unfailing(io.TextIOBase):
    """Writes to `stream`; a line it cannot take (disk full) is lost and counted, and nothing fails by it."""

    def __init__(self, stream: TextIO) -> None:
        self.num_lost = 0
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self.num_lost += 1
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self.num_lost += 1


class FewLines:
    """Lets a few log lines a minute of each kind through, for lines that anyone can cause."""

    def __init__(self, per_minute: int = 30, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[Hashable, TokenBucket] = {}
        self._left_out: Counter[Hashable] = Counter()

    def take(self, kind: Hashable) -> int | None:
        """Return how many lines of this kind were left out since its last one; None: leave this one out too.

        The caller bounds the number of kinds.
        """
        now = self._clock()
        bucket = self._buckets.setdefault(kind, TokenBucket(self._per_minute, self._per_minute, now))
        if bucket.level(now) < 1.0:
            self._left_out[kind] += 1
            return None
        bucket.take(1.0, now)
        return self._left_out.pop(kind, 0)


class LibraryLines(logging.Handler):
    """Writes warnings and errors of a library as log lines of the server, a few a minute from each line of its code."""

    def __init__(self, event: str, lines: FewLines | None = None) -> None:
        super().__init__(logging.WARNING)
        self._event = event
        self._lines = lines or FewLines()

    @classmethod
    def take_over(cls, library: str, event: str) -> None:
        """Write what the library logs as `event`, in place of what handled it before."""
        logger = logging.getLogger(library)
        logger.handlers, logger.propagate = [cls(event)], False
        logger.disabled = False  # a library that configures logging turns off the loggers that exist by then

    def emit(self, record: logging.LogRecord) -> None:
        left_out = self._lines.take((record.pathname, record.lineno))
        if left_out is None:
            return
        more = {"left_out": left_out} if left_out else {}
        log = structlog.get_logger(record.name)
        log.log(record.levelno, self._event, detail=_message_of(record).strip(), exc_info=record.exc_info, **more)


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # contained: a library's slip in a log line must not become a fault of what it does
        return record.msg if isinstance(record.msg, str) else type(record.msg).__name__


def configure_logs(level: Level = "info", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Send the process's log lines to `stream` (standard error) at `level` and above."""
    out = sys.stderr if stream is None else stream
    show: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if not as_json:  # a traceback with local variables would show prompts
        plain = structlog.dev.plain_traceback
        show = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_private,
    ]
    if as_json:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, show],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, Unfailing(out))),
        cache_logger_on_first_use=False,
    )
    LibraryLines.take_over("asyncio", "event_loop")


def hide_private(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Replace the values of private keys by their length."""
    for key in PRIVATE & event.keys():
        value = event[key]
        event[key] = f"<hidden: {len(value)}>" if isinstance(value, str | bytes | list | tuple) else "<hidden>"
    return event
