"""An Alertmanager that only knows silences."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.loopback import Reply, Request, serving


@dataclass(slots=True)
class FakeAlertmanager:
    url: str = ""
    status: int = 200
    """What it answers."""
    silences: dict[str, dict[str, Any]] = field(default_factory=dict)
    """All that were ever posted, by id, as it returns them."""

    def active(self) -> list[dict[str, Any]]:
        return [one for one in self.silences.values() if one["status"]["state"] == "active"]

    def answer(self, request: Request) -> Reply:
        if self.status != 200:
            return Reply(self.status)
        if request.method == "POST":
            name = f"silence-{len(self.silences)}"
            self.silences[name] = {"id": name, "status": {"state": "active"}, **json.loads(request.body)}
            return Reply(body=json.dumps({"silenceID": name}).encode())
        if request.method == "DELETE":
            self.silences[request.path.rpartition("/")[2]]["status"] = {"state": "expired"}
            return Reply()
        return Reply(body=json.dumps(list(self.silences.values())).encode())


@contextmanager
def fake_alertmanager() -> Iterator[FakeAlertmanager]:
    fake = FakeAlertmanager()
    with serving(fake.answer) as fake.url:
        yield fake
