"""`prolepsis serve --engine vllm` over HTTP: requests obey policy, rollout, breakers and kill switch."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from tests.adapters.vllm.other_python import needs_vllm, serving

pytestmark = [needs_vllm, pytest.mark.timeout(400)]  # the first one waits for vLLM
PROMPT = [10, 11, 12, 13, 14, 15] * 8
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
ON: dict[str, Any] = {"speculation": {"mode": "always", "metrics": True}}
SHALLOW: dict[str, Any] = {"speculation": {"mode": "always", "max_depth": 1, "metrics": True}}
"""Two tokens a pass at most, so that a stream lasts."""
LONG: dict[str, Any] = {"max_tokens": 900}
TRAFFIC_CLASS = "completions/standard/free/short"


@dataclass
class Answer:
    """A whole reply, or a stream as it came."""

    header: str
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def drafted(self) -> int:
        return int(self.figures["speculative_decoding"]["num_draft_tokens"])

    @property
    def mode(self) -> tuple[str, str]:
        effective = self.figures["effective"]
        return effective["mode"], effective["reason"]


class Server:
    def __init__(self, http: httpx2.Client) -> None:
        self.http = http
        self.model = http.get("/v1/models").json()["data"][0]["id"]

    def body(self, **more: Any) -> dict[str, Any]:
        return {"model": self.model, "prompt": PROMPT, **GREEDY, "speculation": {"metrics": True}, **more}

    def ask(self, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        reply = self.http.post("/v1/completions", json=self.body(**more), headers=headers)
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-exactness"] == "normal"
        return Answer(reply.headers["x-spec-effective"], reply.json()["metrics"])

    def stream(self, act: Callable[[], object], named: str = "", **more: Any) -> Answer:
        """Read a stream to its end, and call `act` after its first chunks.

        One whose header does not have the text `named` is left.
        """
        body = self.body(**{**LONG, **more, "stream": True})
        with self.http.stream("POST", "/v1/completions", json=body) as reply:
            answer = Answer(reply.headers["x-spec-effective"])
            num_chunks = 0
            for line in reply.iter_lines():
                if named not in answer.header:
                    return answer
                if line.startswith("data: {"):
                    num_chunks += 1
                    answer.figures = json.loads(line.removeprefix("data: ")).get("metrics", {})
                    if num_chunks == 4:
                        act()
        return answer

    def act(self, method: str, path: str, body: dict[str, Any]) -> Any:
        with httpx2.Client(base_url=self.http.base_url, timeout=60) as other:
            reply = other.request(method, path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def apply(self, policy: str) -> None:
        version = self.http.get("/admin/policy").json()["version"]
        self.act("PUT", "/admin/policy", {"text": policy, "expect": version, "reason": "test"})

    def rollout(self) -> dict[str, Any]:
        [found] = self.http.get("/admin/rollouts").json()["rollouts"]
        return dict(found)

    def command(self, name: str) -> dict[str, Any]:
        path = f"/admin/rollouts/{self.rollout()['id']}/{name}"
        return dict(self.act("POST", path, {"reason": "test", "force": False}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    sizes = ("--kv-memory", "64MiB", "--max-requests", "8", "--max-step-tokens", "128", "--max-model-len", "1024")
    files = ["--controls-file", str(folder / "controls.json")]
    store = ("--store", f"sqlite:///{folder / 'kept'}")
    drafts = ("--proposers", "suffix,prompt_lookup", "--shadow-cost", "1")
    with serving(folder, *sizes, *files, *store, *drafts, "--replay-sample", "0") as http:
        yield Server(http)


def test_readiness_says_how_often_tokens_differ(server: Server) -> None:
    ready = server.http.get("/health/ready").json()
    assert ready["exactness"] == "normal"
    assert "greedy tokens differ between a pass with other sequences" in ready["exactness_reason"]


def test_a_policy_is_obeyed_by_each_request_of_a_batch(server: Server) -> None:
    rules = {
        "off": 'mode: "off"',
        "on": 'mode: "on"',
        "depth": 'mode: "on", num_speculative_tokens: 2',
        "shadow": "mode: shadow",
    }
    server.apply(
        "rules:\n" + "".join(f"- {{name: {n}, match: {{headers: {{x-arm: {n}}}}}, {t}}}\n" for n, t in rules.items())
    )
    with ThreadPoolExecutor(len(rules)) as threads:
        asked = {name: threads.submit(server.ask, {"x-arm": name}) for name in rules}
        found = {name: one.result() for name, one in asked.items()}
    assert {name: one.mode[0] for name, one in found.items()} == {
        "off": "off",
        "on": "on",
        "depth": "on",
        "shadow": "shadow",
    }
    assert all(f"rule={name}" in one.header for name, one in found.items())
    assert [found[name].drafted for name in ("off", "shadow")] == [0, 0]
    assert found["on"].drafted > 0
    assert found["depth"].figures["speculative_decoding"]["num_spec_tokens"] <= 2
    assert found["depth"].drafted > 0
    assert found["shadow"].figures["shadow_speculative_decoding"]["num_draft_tokens"] > 0


CANARY = """
rules:
  - name: new
    match: {{route: /v1/completions}}
    mode: "on"
    num_speculative_tokens: {depth}
    rollout: {{stages: [50], holdout: 10, gate: {gate}, min_samples: {samples}, min_stage_s: 0.2}}
    guardrails:
      - {{name: {name}, {limit}}}
"""


def test_a_canary_speculates_alone_until_it_is_rolled_back(server: Server) -> None:
    server.apply(
        CANARY.format(gate="manual", samples=500, depth=1, name="errors", limit="metric: error_rate, margin: 0.5")
    )
    assert server.command("start")["phase"] == "running"
    found = [server.ask() for _ in range(24)]
    arms = {"canary" if "arm=canary" in one.header else "plain" for one in found}
    assert arms == {"canary", "plain"}
    for one in found:
        assert one.mode[0] == ("on" if "arm=canary" in one.header else "off")
    whole = next(one for one in (server.ask(**LONG) for _ in range(20)) if "arm=canary" in one.header)
    canary = Answer("")
    while "arm=canary" not in canary.header:
        canary = server.stream(lambda: server.command("rollback"), "arm=canary")
    assert canary.drafted < whole.drafted
    assert server.rollout()["phase"] == "rolled_back"
    assert {server.ask().mode[0] for _ in range(8)} == {"off"}


def test_a_harmful_canary_is_rolled_back_by_itself(server: Server) -> None:
    server.apply(
        CANARY.format(gate="automatic", samples=4, depth=16, name="far", limit="metric: acceptance_length, limit: 16.5")
    )
    for _ in range(200):
        server.ask()
        if server.rollout()["phase"] == "rolled_back":
            break
    assert server.rollout()["phase"] == "rolled_back"
    assert server.ask().mode[0] == "off"


@pytest.mark.parametrize("how", ["everything", "route:/v1/completions", "breakers"])
def test_streams_stop_drafting_when_they_are_stopped(server: Server, how: str) -> None:
    server.apply('default: {mode: "on"}')

    def turn(*, on: bool) -> None:
        if how != "breakers":
            server.act("PUT", "/admin/kill", {"on": on, "reason": "test", "scope": how})
            return
        for name in server.http.get("/health/ready").json()["proposers"]:
            state = "forced_open" if on else "closed"
            body = {"proposer": name, "traffic_class": TRAFFIC_CLASS, "state": state}
            server.act("PUT", "/admin/health", body)

    whole = server.ask(**LONG, **SHALLOW)
    try:
        stopped = server.stream(lambda: turn(on=True), **SHALLOW)
        after = server.ask(**ON)
    finally:
        turn(on=False)
    assert 0 < stopped.drafted < whole.drafted
    assert stopped.mode == ("on", "speculating" if how == "breakers" else "killed"), "it had drafted before"
    assert (after.drafted, after.mode[1]) == (0, "breaker_open" if how == "breakers" else "killed")
    assert server.ask(**ON).drafted > 0


def test_a_breaker_opens_on_drafts_that_are_wrong(server: Server) -> None:
    server.apply('default: {mode: "on"}')
    noise: dict[str, Any] = {
        "temperature": 2.0,
        "max_tokens": 400,
        "logit_bias": {str(token): 100 for token in range(20, 44)},
        "speculation": {"mode": "shadow", "proposer": "prompt_lookup", "metrics": True},
    }
    breaker: dict[str, Any] = {}
    for seed in range(10):
        server.ask(**noise, seed=seed)
        listed = server.http.get("/admin/health").json()["breakers"]["breakers"]
        [breaker] = [one for one in listed if one["proposer"] == "prompt_lookup"]
        if breaker["state"] == "open":
            break
    assert (breaker["state"], breaker["traffic_class"]) == ("open", TRAFFIC_CLASS)
    served = server.ask(speculation={"mode": "on", "proposer": "prompt_lookup", "metrics": True})
    assert (served.drafted, served.mode[1]) == (0, "breaker_open")
