"""The contract of OpenAI's API over the real vLLM, where the Python of an environment with vLLM 0.32 is named."""

import os
import subprocess

import pytest

from tests.adapters.vllm.fake_only import FAKE_ONLY
from tests.adapters.vllm.other_python import VARIABLE, environment, needs_vllm
from tests.paths import ROOT


def test_tests_that_only_the_fake_engine_passes_exist() -> None:
    for test in FAKE_ONLY:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests/server/openai" / file).read_text(), test


@needs_vllm
@pytest.mark.timeout(960)
def test_the_tests_of_openais_api_pass_over_vllm() -> None:
    options = ["-q", "-W", "ignore", "-p", "tests.adapters.vllm.openai_contract"]  # vLLM's modules warn
    command = [os.environ[VARIABLE], "-m", "pytest", *options, "tests/server/openai"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
