"""The names of attributes are those that the documentation lists."""

import re

from prolepsis.ops.tracing import names
from tests.paths import ROOT

DOCUMENT = ROOT / "docs" / "how-to" / "traces.md"
DECLARED = {name: value for name, value in vars(names).items() if name.isupper()}
ATTRIBUTES = {value for name, value in DECLARED.items() if not name.startswith("SPAN_")}
BY_VLLM = "gen_ai.latency."


def test_latencies_are_those_of_vllm() -> None:
    assert {name.removeprefix(BY_VLLM) for name in ATTRIBUTES if name.startswith(BY_VLLM)} == {
        "time_in_queue",
        "time_in_model_prefill",
        "time_in_model_decode",
        "time_in_model_inference",
        "time_to_first_token",
        "e2e",
    }


def test_the_documentation_lists_every_name_and_no_other() -> None:
    listed = re.findall(r"^\| `([a-z_0-9]+\.[a-z_.0-9]+)`", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(ATTRIBUTES)
