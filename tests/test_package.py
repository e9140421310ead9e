"""The public surface: about ten names, imported when first used."""

import json
import subprocess
import sys
from importlib.resources import files

import pytest

import prolepsis

PUBLIC = {
    "Draft",
    "EngineClient",
    "EngineConfig",
    "GenerateRequest",
    "ProlepsisError",
    "Proposer",
    "SamplingParams",
    "ServerConfig",
    "SpecPlan",
    "SpeculationChoice",
    "__version__",
}


def test_the_public_names_are_pinned() -> None:
    assert set(prolepsis.__all__) == PUBLIC


def test_every_public_name_can_be_had() -> None:
    for name in PUBLIC:
        value = getattr(prolepsis, name)
        assert getattr(value, "__name__", name) == name


def test_an_unknown_name_is_an_attribute_error_that_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Engin'; it has: Draft"):
        _ = prolepsis.Engin


@pytest.mark.parametrize("names", [[], sorted(PUBLIC)])
def test_import_needs_no_torch(names: list[str]) -> None:
    program = f"import prolepsis, sys\n[getattr(prolepsis, n) for n in {names!r}]\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_server_starts_without_scipy() -> None:
    program = "import prolepsis.api.run, sys\nprint('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_the_shipped_prompts_are_sixteen_of_seven_kinds() -> None:
    lines = (files("prolepsis") / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line) for line in lines]
    assert len(prompts) == 16
    assert len({p["id"] for p in prompts}) == 16
    kinds = {"chat", "code_edit", "rag", "summarisation", "json", "math", "translation"}
    assert {p["category"] for p in prompts} == kinds
    assert all(p["prompt"].strip() for p in prompts)
