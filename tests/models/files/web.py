"""A small HTTP server on this machine that serves bytes by path, with ranges and faults on demand."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + 34 * "0"
"""Of every repository served."""


@dataclass
class Web:
    """What is served, how it misbehaves, and what was asked."""

    pages: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    """Further headers of the answers, by path."""
    cut_after: list[int] = field(default_factory=list)
    """For each of the next answers: end the connection after so many bytes."""
    statuses: list[int] = field(default_factory=list)
    """For each of the next answers: this status instead of the page."""
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, Range header) of every request."""
    url: str = ""

    def serve_hub(self, repository: str, files: dict[str, bytes], card: dict[str, str] | None = None) -> None:
        """Serve `files` as huggingface_hub expects a repository; of safetensors it states the checksum."""
        siblings: list[dict[str, object]] = []
        for name, body in files.items():
            checksum = hashlib.sha256(body).hexdigest()
            lfs = {"size": len(body), "sha256": checksum, "pointerSize": 1} if name.endswith(".safetensors") else None
            siblings.append({"rfilename": name, "size": len(body), **({"lfs": lfs} if lfs else {})})
            path = f"/{repository}/resolve/{COMMIT}/{name}"
            self.pages[path] = body
            self.headers[path] = {"ETag": f'"{checksum}"', "X-Repo-Commit": COMMIT}
        document = {"id": repository, "sha": COMMIT, "siblings": siblings, "cardData": card or {}}
        self.pages[f"/api/models/{repository}/revision/main"] = json.dumps(document).encode()


@contextmanager
def serve(web: Web) -> Iterator[Web]:
    """Serve `web` on a free port while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, web)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(handler: BaseHTTPRequestHandler, web: Web) -> None:
    """Answer one request as `web` says."""
    path = handler.path.partition("?")[0]
    wanted = handler.headers.get("Range")
    web.asked.append((path, wanted))
    body = web.pages.get(path)
    status = web.statuses.pop(0) if web.statuses else (404 if body is None else 200)
    body = body or b""
    if status == 200 and wanted and web.ranges:
        first = int(wanted.removeprefix("bytes=").rstrip("-"))
        status, body = (206, body[first:]) if first < len(body) else (416, b"")
    cut = web.cut_after.pop(0) if web.cut_after else len(body)  # before the headers: they are the whole answer to HEAD
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.send_header("Content-Type", web.types.get(path, "application/octet-stream"))
    for name, value in web.headers.get(path, {}).items():
        handler.send_header(name, value)
    handler.send_header("Connection", "close")
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(body[:cut])
    handler.close_connection = True
