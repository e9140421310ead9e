"""Families by name: vocabularies and chat templates of our own, and published ones.

PROLEPSIS_TEST_MODELS names the folder of those: `vocab/ggml-vocab-NAME.gguf`, with texts (`.inp`) and their ids
(`.out`), and `templates/NAME.jinja`. Tests that take one are skipped without it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.engine.models.family import Family, write_family
from tests.engine.models.files.vocabularies import OWN, write_vocabulary

FOLDER = os.environ.get("PROLEPSIS_TEST_MODELS", "")
WHY = "PROLEPSIS_TEST_MODELS names no folder with vocab/ and templates/"
NEEDS_PUBLISHED = pytest.mark.skipif(not FOLDER, reason=WHY)

HERMES = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Call as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
    "{% if m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% elif m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{{ m.content }}"
    "{% else %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "hermes": HERMES,
}
"""Roles and text only; and with tools, calls and reasoning between marks."""


def published(part: str) -> Path:
    """Return a file or a folder of the published ones; skips the test where they are not here."""
    if not FOLDER:
        pytest.skip(WHY)
    return Path(FOLDER) / part


def template_of(name: str) -> str:
    return TEMPLATES.get(name) or published(f"templates/{name}.jinja").read_text(encoding="utf-8")


def write_named(out: Path, vocabulary: str, template: str, added: Mapping[str, int] | None = None) -> Path:
    """Write the tiny model of a vocabulary and a template, both by name; see `Family` for `added`."""
    with TemporaryDirectory() as folder:
        if vocabulary in OWN:
            file = write_vocabulary(Path(folder) / "own.gguf", OWN[vocabulary]())
        else:
            file = published(f"vocab/ggml-vocab-{vocabulary}.gguf")
        return write_family(out, Family(file, template_of(template), added or {}))
