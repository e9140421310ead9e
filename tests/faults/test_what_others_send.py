"""What others send is read within a bound and away from the event loop, so that one client stops no other."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx2
import pytest

from prolepsis.control.policy import routes
from prolepsis.control.policy.check import MOST_VALUES, NOTHING_KNOWN, InvalidPolicy, usable_policy
from prolepsis.control.policy.model import Policy
from prolepsis.core.kill_scope import kill_scope
from prolepsis.core.requests import SamplingParams
from prolepsis.server.openai import explain
from tests.fakes import EngineSetup, build, request, submit, terminals
from tests.load.server import TableServer, serving
from tests.waiting import LIMIT_S

RULES = "rules:\n" + "".join(f"- {{name: r{i}, mode: off}}\n" for i in range(200))


@pytest.mark.parametrize(
    ("module", "path", "body"),
    [
        (explain, "/admin/policy/explain", {"request": {"model": "table", "prompt": "a"}, "text": RULES}),
        (routes, "/admin/policy/check", {"text": RULES}),
    ],
)
def test_a_large_policy_is_read_away_from_the_event_loop(
    module: object, path: str, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(text: str, name: str, known: object) -> Policy:
        begun.set()
        assert goes_on.wait(LIMIT_S)
        return Policy()

    monkeypatch.setattr(module, "usable_policy", slow)
    server = TableServer()
    with serving(server), httpx2.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(1) as other:
        reply = other.submit(http.post, path, json=body)
        assert begun.wait(LIMIT_S)
        asked = {"model": "table", "prompt": "banana", "max_tokens": 2}
        assert http.post("/v1/completions", json=asked).status_code == 200, "while the policy is read"
        goes_on.set()
        assert reply.result().status_code == 200
        server.check_ended_once()


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 200_000,
        "rules: [" + "1," * 100_000 + "]",
        "\n".join(f"k{i}: {i}" for i in range(MOST_VALUES)),
        "rules:\n" + "- {name: r, mode: off}\n" * MOST_VALUES,
    ],
    ids=["brackets", "values", "unknown keys", "rules"],
)
def test_a_policy_of_more_values_than_any_has_is_refused_before_it_is_read(text: str) -> None:
    with pytest.raises(InvalidPolicy, match="allowed"):
        usable_policy(text, "policy", NOTHING_KNOWN)


def test_of_very_many_errors_the_first_are_shown_and_the_others_counted() -> None:
    with pytest.raises(InvalidPolicy) as caught:
        usable_policy("\n".join(f"k{i}: 1" for i in range(1000)), "policy", NOTHING_KNOWN)
    assert len(caught.value.findings) == 201
    assert caught.value.findings[-1].message == "has 800 more errors"


@pytest.mark.parametrize("n", [16, 64, 128])
def test_short_requests_beside_many_samples_and_a_stream_wait_for_no_other(n: int) -> None:
    """Steps are the measure: each short request has as many as it has alone."""
    engine = build(EngineSetup(max_sequences=16, num_pages=400, max_step_tokens=64))
    long = SamplingParams(temperature=1.0, max_tokens=200, ignore_eos=True)
    short = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    tenants: Callable[[str], frozenset[str]] = lambda name: frozenset({kill_scope("tenant", name)})  # noqa: E731
    submit(engine, replace(request("stream", [1, 2], long), kill_scopes=tenants("stream")))
    submit(engine, replace(request("many", [3, 4], short, n=n, priority=1), kill_scopes=tenants("many")))
    for i in range(20):
        for tenant in "ab":
            asked = request(f"{tenant} {i}", [5, 6], short, priority=i % 2)
            submit(engine, replace(asked, kill_scopes=tenants(tenant)))
        ended = terminals([event for _ in range(short.max_tokens) for event in engine.step()])
        assert {f"a {i}", f"b {i}"} <= ended.keys(), json.dumps(sorted(ended))
