"""A small HTTP server on this machine that serves bytes by path, with ranges and faults on demand."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.loopback import Reply, Request, serving

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

    def answer(self, request: Request) -> Reply:
        path = request.path.partition("?")[0]
        wanted = request.headers.get("range")
        self.asked.append((path, wanted))
        body = self.pages.get(path)
        status = self.statuses.pop(0) if self.statuses else (404 if body is None else 200)
        body = body or b""
        if status == 200 and wanted and self.ranges:
            first = int(wanted.removeprefix("bytes=").rstrip("-"))
            status, body = (206, body[first:]) if first < len(body) else (416, b"")
        headers = {"content-type": self.types.get(path, "application/octet-stream"), **self.headers.get(path, {})}
        return Reply(status, body, headers, self.cut_after.pop(0) if self.cut_after else None)


@contextmanager
def serve(web: Web) -> Iterator[Web]:
    """Serve `web` on a free port while the block runs."""
    with serving(web.answer) as web.url:
        yield web
