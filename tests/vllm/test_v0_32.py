"""The real vLLM behind our client, where the Python of an environment with vLLM 0.32 is named."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import save_tiny
from tests.train.targets import save_target

PYTHON = os.environ.get("PROLEPSIS_TEST_VLLM")
ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(
    PYTHON is None, reason="PROLEPSIS_TEST_VLLM does not name the Python of an environment with vLLM 0.32"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = save_target(tmp_path_factory.mktemp("target"))
    shape: dict[str, object] = {"vocab_size": 259, "num_hidden_layers": 2, "tie_word_embeddings": True, "head_dim": 32}
    save_tiny(folder, "llama", shape)
    assert PYTHON is not None
    script = ROOT / "tests" / "vllm" / "contract.py"
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(  # our own script
        [PYTHON, str(script), str(folder)], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


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


def test_our_sampler_and_grammars_serve_it(report: dict[str, Any]) -> None:
    found = report["parameters"]
    assert found["bias"]
    assert found["choice_accepted"] > 0
    assert found["samples_differ"]
    assert found["seed_repeats"] == 2


def test_it_says_that_its_exactness_is_normal(report: dict[str, Any]) -> None:
    assert report["exactness"] == "normal"
    assert report["ready"]
