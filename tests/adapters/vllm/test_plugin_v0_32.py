"""The worker and proposer class in the real vLLM, where the Python of an environment with vLLM 0.32 is named."""

from typing import Any

import pytest

from tests.adapters.vllm.other_python import needs_vllm, report_of

pytestmark = [needs_vllm, pytest.mark.timeout(560)]  # the first one waits for vLLM


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report_of("plugin_contract.py", tmp_path_factory.mktemp("target"))


def test_each_request_says_how_it_speculates(report: dict[str, Any]) -> None:
    assert report["off"] == {"tokens": 40, "verified": 0, "shadow": 0}
    assert report["shadow"]["verified"] == 0
    assert report["shadow"]["shadow"] > 0
    assert report["on"]["verified"] > 0
    assert report["on"]["shadow"] == 0
    assert report["batch"] == [40, 40, 40]


def test_a_seed_repeats_and_vllm_keeps_its_own_parameters(report: dict[str, Any]) -> None:
    assert report["seed_repeats"]
    assert report["logprobs"] >= 2
