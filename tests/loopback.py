"""An HTTP server on loopback that answers what a function says: the other side of code that calls out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.waiting import ended


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """With the query."""
    headers: Mapping[str, str]
    """Their names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """The connection ends after so many bytes of the body."""
    forever: bytes = b""
    """Said behind the body, again and again, until the other side leaves."""


@contextmanager
def serving(answer: Callable[[Request], Reply]) -> Iterator[str]:
    """Serve `answer` while the block runs; yield the URL. Requests come in threads of their own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", "0")))
            reply = answer(Request(self.command, self.path, headers, body))
            self.send_response(reply.status)
            if not reply.forever:
                self.send_header("content-length", str(len(reply.body)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                with suppress(ConnectionError):  # the other side may have left
                    self.wfile.write(reply.body[: reply.cut_after])
                    while reply.forever:
                        self.wfile.write(reply.forever)

        do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            ended(thread)
