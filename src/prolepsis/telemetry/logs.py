"""Log lines for people (console) or programs (JSON); what users write never gets into them."""

import io
import logging
import sys
from collections.abc import MutableMapping
from typing import Literal, TextIO, cast

import structlog

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


def hide_private(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Replace the values of private keys by their length."""
    for key in PRIVATE & event.keys():
        value = event[key]
        event[key] = f"<hidden: {len(value)}>" if isinstance(value, str | bytes | list | tuple) else "<hidden>"
    return event
