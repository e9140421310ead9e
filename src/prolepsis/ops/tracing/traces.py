"""The traces of a server as its other parts see them; as they stand here, no trace is kept."""

from prolepsis.control.web.feature import Feature
from prolepsis.core.ended import RequestEnded
from prolepsis.core.recording import Replayed
from prolepsis.core.trace_context import TraceContext


class Traces(Feature):
    """Continues the traces of callers, and sends none."""

    name = "tracing"

    def begin(self, caller: TraceContext | None) -> TraceContext | None:
        """Return the span of an HTTP request that arrives; `caller` is the span that it was sent from."""
        return caller and caller.child()

    def on_http_end(self, trace: TraceContext, line: tuple[str, str], status: int, arrived: float) -> None:
        """Take in an HTTP request that the engine has not seen; `line`: its method, its route's pattern."""

    def on_mismatch(self, ended: RequestEnded, request_id: str, replayed: Replayed, began: float) -> None:
        """Take in a request whose replay, which began at `began` and ends now, had other tokens."""
