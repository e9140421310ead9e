"""What a running server says of itself, as far as it answers."""

from typing import Any

import httpx

from prolepsis.core.errors import ConfigError, InvalidParameter

_TIMEOUT_S = 10.0

PARTS = {
    "health.json": ("/health/ready", "whether the engine is ready"),
    "traffic.json": ("/admin/traffic", "acceptance, savings and modes by traffic class, the last hour"),
    "slowest.json": ("/admin/recent?order=slowest&last=50", "the slowest of the last requests, with rounds"),
    "newest.json": ("/admin/recent?order=newest&last=100", "the last requests"),
    "kill.json": ("/admin/kill", "the kill switch and its sources"),
    "flags.json": ("/admin/flags", "flags that operators set"),
    "breakers.json": ("/admin/breakers", "circuit breakers by proposer and traffic class"),
    "drift.json": ("/admin/drift", "drift of acceptance"),
    "heads.json": ("/admin/heads", "draft heads installed and in use"),
    "rollouts.json": ("/admin/rollouts", "rollouts with verdicts"),
    "policy.json": ("/admin/policy", "the policy in use"),
    "correctness.json": ("/admin/correctness", "replayed requests and their mismatches"),
    "cost.json": ("/admin/cost", "device seconds, money and savings"),
}
"""Files of a snapshot: the path that each comes from, and what it is."""


class Server:
    """Asked for one thing after the other; one that does not answer once is not asked again."""

    def __init__(self, url: str, key: str | None, transport: httpx.BaseTransport | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._transport = transport
        self._fault = ""

    def document(self, path: str) -> Any:
        """Return the JSON of a reply; raises as `text` does."""
        try:
            return self._reply(path).json()
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}", param="url") from None

    def text(self, path: str) -> str:
        """Return the text of a reply; raises `ConfigError` without an answer, `InvalidParameter` for a refusal."""
        return self._reply(path).text

    def _reply(self, path: str) -> httpx.Response:
        if self._fault:
            raise ConfigError(self._fault, param="url")
        try:
            with httpx.Client(transport=self._transport, timeout=_TIMEOUT_S) as client:
                reply = client.get(f"{self._url}{path}", headers=self._headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._fault = f"no server answers at {self._url}: {error or type(error).__name__}"
            raise ConfigError(self._fault, param="url") from None
        if reply.is_success or path.startswith("/health"):
            return reply
        raise InvalidParameter(f"the server replies with {reply.status_code} to {path}")
