"""An Alertmanager that only knows silences."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass(slots=True)
class FakeAlertmanager:
    url: str = ""
    status: int = 200
    """What it answers."""
    silences: dict[str, dict[str, Any]] = field(default_factory=dict)
    """All that were ever posted, by id, as it returns them."""

    def active(self) -> list[dict[str, Any]]:
        return [one for one in self.silences.values() if one["status"]["state"] == "active"]

    def answer(self, method: str, path: str, body: bytes) -> object:
        if method == "POST":
            name = f"silence-{len(self.silences)}"
            self.silences[name] = {"id": name, "status": {"state": "active"}, **json.loads(body)}
            return {"silenceID": name}
        if method == "DELETE":
            self.silences[path.rpartition("/")[2]]["status"] = {"state": "expired"}
            return None
        return list(self.silences.values())


@contextmanager
def fake_alertmanager() -> Iterator[FakeAlertmanager]:
    """Run one on loopback while the block runs."""
    fake = FakeAlertmanager()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply()

        def do_POST(self) -> None:
            self._reply()

        def do_DELETE(self) -> None:
            self._reply()

        def _reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            done = fake.answer(self.command, self.path, body) if fake.status == 200 else None
            reply = json.dumps(done).encode() if done is not None else b""
            self.send_response(fake.status)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
