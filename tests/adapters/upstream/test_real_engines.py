"""`--engine upstream` in front of real engines: answers, policies, a canary, its rollback, the kill switch."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from prolepsis.control.cost.comparison import CALIBRATION
from prolepsis.core.config import UpstreamApi
from tests.adapters.upstream.real_engines import ENGINES, Front, in_front_of

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1500)]  # the first one waits for three servers
COUNTING = ("one two three four five six seven eight nine ten " * 6).strip()
"""The model goes on with it from its first token on; after a space it says digits, and nothing is drafted for long."""
BODY: dict[str, Any] = {"prompt": COUNTING, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
METRICS = {"speculation": {"metrics": True}}
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What will the weather in Ulm be in the next three days?"}],
    "max_tokens": 60,
    "temperature": 0,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
CANARY = """
rules:
  - name: new
    match: {{route: /v1/completions}}
    mode: "on"
    shadow_percentage: 0
    rollout: {{stages: [50], holdout: 10, gate: {gate}, min_samples: {samples}, min_stage_s: 0.2}}
    guardrails:
      - {{name: {name}, {limit}}}
"""


@pytest.fixture(scope="module", params=ENGINES)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with in_front_of(cast("UpstreamApi", request.param), tmp_path_factory.mktemp("pools")) as front:
        yield front


class Asked:
    """A whole reply."""

    def __init__(self, front: Front, **more: Any) -> None:
        reply = front.http.post("/v1/completions", json={"model": front.model, **BODY, **METRICS, **more})
        assert reply.status_code == 200, reply.text
        self.header = reply.headers["x-spec-effective"]
        self.text = reply.json()["choices"][0]["text"]
        self.metrics = reply.json()["metrics"]
        self.mode = (self.metrics["effective"]["mode"], self.metrics["effective"]["reason"])
        self.drafts = self.metrics["speculative_decoding"]

    @property
    def is_canary(self) -> bool:
        return "arm=canary" in self.header


def act(front: Front, method: str, path: str, body: dict[str, Any]) -> Any:
    reply = front.http.request(method, path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def apply(front: Front, policy: str) -> None:
    version = front.http.get("/admin/policy").json()["version"]
    act(front, "PUT", "/admin/policy", {"text": policy, "expect": version, "reason": "test"})


def rollout(front: Front) -> dict[str, Any]:
    [found] = front.http.get("/admin/rollouts").json()["rollouts"]
    return dict(found)


def command(front: Front, name: str) -> None:
    act(front, "POST", f"/admin/rollouts/{rollout(front)['id']}/{name}", {"reason": "test", "force": False})


def chat(front: Front, **more: Any) -> Any:
    return front.http.post("/v1/chat/completions", json={"model": front.model, **ASKED, **METRICS, **more})


def stream(front: Front, finish: str = "length", **more: Any) -> str:
    body = {"model": front.model, **ASKED, **more, "stream": True}
    with front.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [finish]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_chat_streams_what_it_says_whole(front: Front, mode: str) -> None:
    apply(front, 'default: {mode: "' + mode + '"}\n')
    whole = chat(front, ignore_eos=True).json()
    assert whole["usage"]["completion_tokens"] == ASKED["max_tokens"]
    text = whole["choices"][0]["message"]["content"]
    assert len(text) > ASKED["max_tokens"]
    assert stream(front, ignore_eos=True) == text


@pytest.mark.parametrize("mode", ["off", "on"])
def test_structured_output(front: Front, mode: str) -> None:
    apply(front, 'default: {mode: "' + mode + '"}\n')
    form = {"type": "json_schema", "json_schema": {"name": "plan", "schema": SCHEMA, "strict": True}}
    reply = chat(front, response_format=form)
    assert reply.status_code == 200, reply.text
    assert 1 <= json.loads(reply.json()["choices"][0]["message"]["content"])["days"] <= 9


@pytest.mark.parametrize("mode", ["off", "on"])
def test_characters_of_several_tokens_come_whole(front: Front, mode: str) -> None:
    apply(front, 'default: {mode: "' + mode + '"}\n')
    faces = {"type": "object", "properties": {"face": {"enum": ["🦜🙂 ça"]}}, "required": ["face"]}
    form = {"type": "json_schema", "json_schema": {"name": "faces", "schema": faces}}
    assert json.loads(stream(front, "stop", response_format=form)) == {"face": "🦜🙂 ça"}


def test_tools_and_log_probabilities_as_the_table_says(front: Front) -> None:
    apply(front, 'default: {mode: "on"}\n')
    called = chat(front, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    shown = chat(front, logprobs=True, top_logprobs=2)
    if front.api == "llama.cpp":
        assert (called.status_code, called.json()["error"]["code"]) == (400, "invalid_grammar")
        assert "a lark grammar" in called.json()["error"]["message"]
        assert (shown.status_code, shown.json()["error"]["param"]) == (400, "logprobs")
        return
    [call] = called.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert 1 <= json.loads(call["function"]["arguments"])["days"] <= 9
    tokens = shown.json()["choices"][0]["logprobs"]["content"]
    assert len(tokens) == shown.json()["usage"]["completion_tokens"]
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


def test_a_policy_chooses_the_pool_and_acceptance_is_read(front: Front) -> None:
    apply(front, 'default: {mode: "off"}\n')
    plain = Asked(front)
    apply(front, 'default: {mode: "on"}\n')
    drafted = Asked(front)
    assert (plain.mode[0], drafted.mode) == ("off", ("on", "speculating"))
    assert (plain.drafts["num_draft_tokens"], plain.drafts["num_accepted_draft_tokens"]) == (0, 0)
    assert 0 < drafted.drafts["num_accepted_draft_tokens"] <= drafted.drafts["num_draft_tokens"]
    assert (drafted.drafts["mean_acceptance_length"] is None) == (front.api == "llama.cpp"), "it tells no drafts"
    assert drafted.text[:20] == plain.text[:20]


def test_a_canary_speculates_alone_until_it_is_rolled_back(front: Front) -> None:
    limit = "metric: error_rate, margin: 0.5"
    apply(front, CANARY.format(gate="manual", samples=500, name="errors", limit=limit))
    command(front, "start")
    found = [Asked(front, max_tokens=16) for _ in range(4 * CALIBRATION)]
    assert {one.mode for one in found if one.is_canary} == {("on", "speculating")}
    assert {one.mode[0] for one in found if not one.is_canary} == {"off"}
    [experiment] = front.http.get("/admin/cost").json()["rollouts"]
    [every] = [group for group in experiment["groups"] if group["by"] == "all"]
    assert 0 < every["num_canary"] < sum(one.is_canary for one in found), "without those before it is calibrated"
    assert every["device_s_per_token"] > 0.0 < every["control_device_s_per_token"]
    command(front, "rollback")
    assert rollout(front)["phase"] == "rolled_back"
    assert {Asked(front).mode[0] for _ in range(8)} == {"off"}


def test_a_harmful_canary_is_rolled_back_by_itself(front: Front) -> None:
    rare = "metric: acceptance_rate, limit: 0.999"
    apply(front, CANARY.format(gate="automatic", samples=4, name="taken", limit=rare))
    prompt = "Once upon a time there was a king. Once upon a time there was a"
    for _ in range(200):
        Asked(front, prompt=prompt)
        if rollout(front)["phase"] == "rolled_back":
            break
    assert rollout(front)["phase"] == "rolled_back"
    assert Asked(front).mode[0] == "off"


def test_the_kill_switch_sends_requests_to_the_plain_pool(front: Front) -> None:
    apply(front, 'default: {mode: "on"}\n')
    act(front, "PUT", "/admin/kill", {"on": True, "reason": "test", "scope": "everything"})
    killed = Asked(front)
    act(front, "PUT", "/admin/kill", {"on": False, "reason": "test", "scope": "everything"})
    assert (killed.mode, killed.drafts["num_draft_tokens"]) == (("off", "killed"), 0)
    assert Asked(front).mode == ("on", "speculating")
