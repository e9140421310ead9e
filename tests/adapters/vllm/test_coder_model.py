"""Calls and structured answers of the coder model, whose marks are one token each, over the real vLLM."""

import asyncio
import json
from pathlib import Path

import httpx2
import jsonschema
import pytest

from tests.adapters.vllm.other_python import needs_vllm, serving
from tests.coder_model import CONFIG, needs_coder
from tests.server.test_coder_model import EXPECTED, SCHEMAS, TOOLS, schema_forms, tool_forms
from tests.server.test_default_model import PLAIN, STREAM, ask

pytestmark = [needs_vllm, needs_coder, pytest.mark.timeout(900)]  # weights are written out, and vLLM loads them
OPTIONS = ("--served-model-names", "coder", "--kv-memory", "256MiB", "--max-model-len", "2048")


def test_calls_and_forms_are_valid_over_vllm(tmp_path: Path) -> None:
    """Identity is not promised there: nearly tied tokens may differ."""
    with serving(tmp_path, *OPTIONS, target=Path(CONFIG.model)) as http:
        url = str(http.base_url)

        async def all_answers() -> list[tuple[str, dict[str, object]]]:
            async with httpx2.AsyncClient(base_url=url, timeout=300) as client:
                forms = tool_forms() | schema_forms()
                return [
                    (name, await ask(client, form | way)) for name, form in forms.items() for way in (PLAIN, STREAM)
                ]

        for name, answer in asyncio.run(all_answers()):
            if name in SCHEMAS:
                jsonschema.validate(json.loads(str(answer["content"])), SCHEMAS[name])
                continue
            calls = answer["calls"]
            assert isinstance(calls, list)
            assert [function for function, _ in calls] == EXPECTED.get(name, [function for function, _ in calls])
            for function, arguments in calls:
                jsonschema.validate(json.loads(arguments), TOOLS[function])
