"""The public surface: about ten names, imported when first used."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import prolepsis
import prolepsis.engine
from tests.engine.models.tiny import BASE

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


START = """
import sys
from pathlib import Path
import prolepsis.server.run
from tests.server.application import build
from prolepsis.core.config import ServerConfig
from prolepsis.engine.models.files.weights import folder_config
from prolepsis.control.redaction.name_lists import name_lists
from prolepsis.control.redaction.values import redacted
from prolepsis.core.telemetry.metrics import Metrics
from tests.server.fakes import ByteTokenizer, FakeEngine

folder_config(Path(sys.argv[1]))
build(ServerConfig(traces="none"), FakeEngine(), ByteTokenizer(), Metrics())
redacted({"model": "SmolLM", "why": "slow since noon", "port": 8000})
heavy = ("scipy", "transformers", "opentelemetry.sdk", "opentelemetry.exporter", "google.protobuf", "requests")
heavy += ("huggingface_hub", "openfeature.contrib.tools.flagd.core")
print([name for name in heavy if name in sys.modules] + ["names"] * name_lists.cache_info().currsize)
redacted("told Anna")
print(name_lists.cache_info().currsize)
"""


def test_the_public_names_are_pinned() -> None:
    assert set(prolepsis.__all__) == PUBLIC


def test_every_public_name_can_be_had() -> None:
    for name in PUBLIC:
        value = getattr(prolepsis, name)
        assert getattr(value, "__name__", name) == name


def test_the_engine_has_ten_public_names() -> None:
    assert len(prolepsis.engine.__all__) == 10
    for name in prolepsis.engine.__all__:
        value = getattr(prolepsis.engine, name)
        assert getattr(value, "__name__", name) == name


def test_an_unknown_name_is_an_attribute_error_that_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Engin'; it has: Draft"):
        _ = prolepsis.Engin


def test_import_needs_no_torch() -> None:
    program = "import prolepsis.engine, sys\nfrom prolepsis import *\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_server_starts_without_what_few_need(tmp_path: Path) -> None:
    """Transformers where the folder's configuration will do, OpenTelemetry for traces, the lists of names for prose."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **BASE}))
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["[]", "1"]


def test_the_shipped_prompts_are_sixteen_of_seven_kinds() -> None:
    lines = (files("prolepsis.lab.measure") / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line) for line in lines]
    assert len(prompts) == 16
    assert len({p["id"] for p in prompts}) == 16
    kinds = {"chat", "code_edit", "rag", "summarisation", "json", "math", "translation"}
    assert {p["category"] for p in prompts} == kinds
    assert all(p["prompt"].strip() for p in prompts)
