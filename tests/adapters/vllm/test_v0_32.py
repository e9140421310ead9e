"""The real vLLM behind our client, where the Python of an environment with vLLM 0.32 is named."""

import json
from typing import Any

import pytest

from tests.adapters.vllm.other_python import needs_vllm, report_of

pytestmark = [needs_vllm, pytest.mark.timeout(560)]  # the first one waits for vLLM


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report_of("contract.py", tmp_path_factory.mktemp("target"))


def test_speculation_is_chosen_by_each_request(report: dict[str, Any]) -> None:
    found = report["per_request"]
    assert found["off"]["mode"] == "off"
    assert found["off"]["drafted"] == 0
    assert found["on"]["mode"] == "on"
    assert found["on"]["drafted"] > 0
    assert 1 <= found["depth"]["deepest"] <= 2
    assert found["shadow"]["mode"] == "shadow"
    assert found["shadow"]["drafted"] == 0
    assert found["shadow"]["compared"] > 0
    assert {one["tokens"] for one in found.values()} == {40}


def test_requests_in_flight_obey(report: dict[str, Any]) -> None:
    found = report["in_flight"]
    for name in ("plan", "run"):
        assert found[name]["events"] > 100
        assert found[name]["accepted_after"] == 0
    assert found["abort"]
    assert found["deadline"]
    assert report["left_running"] == 0


def test_what_vllm_logs_is_not_among_what_is_printed_for_programs(report: dict[str, Any]) -> None:
    assert report["others"] == []


def test_our_sampler_and_grammars_serve_it(report: dict[str, Any]) -> None:
    found = report["parameters"]
    assert found["bias"]
    assert found["choice_accepted"] > 0
    assert found["samples_differ"]
    assert found["seed_repeats"] == 2


def test_contexts_end_and_requests_wait_their_turn(report: dict[str, Any]) -> None:
    found = report["limits"]
    assert found["finished"] == "Finished"
    assert found["at_the_end"] == 1024 - 960
    assert found["crowd"] == [20 + i for i in range(10)]
    assert found["crowd_plain"] == 0
    assert found["one_token"] == [9, 9, 9]


def test_openais_api_is_served_around_it(report: dict[str, Any]) -> None:
    found = report["over_http"]
    assert found["ready"] == "normal"
    for form in ("text", "schema", "tool"):
        assert found[form]["whole"] == found[form]["stream"] != ""
    for form in ("schema", "tool"):
        assert set(json.loads(found[form]["whole"])) == {"city", "days"}
    assert found["refused"] == 400


def test_it_says_that_its_exactness_is_normal(report: dict[str, Any]) -> None:
    assert report["exactness"] == "normal"
    assert report["ready"]
