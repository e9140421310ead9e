"""Published chat templates: what they write of a call is allowed by the form that is chosen, and read as that call."""

import json
from pathlib import Path
from typing import Any

import llguidance
import pytest

from docs.tables import expanded
from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.engine.text.answer_formats.answer_parser import AnswerParser
from prolepsis.engine.text.answer_formats.choose import answer_formats
from prolepsis.engine.text.answer_formats.formats import REASONING_FORMATS, AnswerFormats
from prolepsis.engine.text.answer_formats.table import TOOL_FORMATS
from prolepsis.engine.text.answer_formats.tool_format import Call
from prolepsis.engine.text.chat_template import ChatTemplate
from prolepsis.server.preparing.asked import tool_use
from prolepsis.server.preparing.bodies import ToolBody
from prolepsis.server.preparing.constraint import constraint
from tests.engine.models.families import FOLDER, NEEDS_PUBLISHED, TEMPLATES
from tests.engine.text.answer_formats.reading import read_all
from tests.paths import ROOT

pytestmark = NEEDS_PUBLISHED

BYTES = llguidance.LLTokenizer("byte")
PUBLISHED = sorted(Path(FOLDER).glob("templates/*.jinja")) if FOLDER else []
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
NOT_KNOWN = {"MiniMax-M3", "muse-glimmer"}
"""Their forms of calls are not read, and requests with tools are refused."""
CONTENT = {
    *("HuggingFaceTB-SmolLM3-3B", "Kimi-K2-Instruct", "Kimi-K2-Thinking"),
    *("LFM2-8B-A1B", "LFM2.5-Instruct", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "google-gemma-2-2b-it"),
    *("fireworks-ai-llama-3-firefunction-v2", "ibm-granite-granite-3.3-2B-Instruct", "llama-cpp-rwkv-world"),
    *("meetkai-functionary-medium-v3.2", "microsoft-Phi-3.5-mini-instruct"),
}
"""They write no calls, or refuse those of the test; calls of a conversation are put into its text."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "town": {"type": "string", "description": "a town"},
        "days": {"type": "integer", "description": "how many"},
        "exact": {"type": "boolean", "description": "no rounding"},
        "near": {"type": "array", "items": {"type": "string"}, "description": "others"},
    },
    "required": ["town"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Looks.", "parameters": SCHEMA}}
    for name in ("get_weather", "get_time")
]
USE = tool_use([ToolBody.model_validate(tool) for tool in TOOLS], "auto", None)
CALLS: list[tuple[str, dict[str, object]]] = [
    ("get_weather", {"town": 'Kiel "B" <b>', "days": 2, "exact": False, "near": ["a", "it's b"]}),
    ("get_time", {"town": "Rome"}),
]


def of(path: Path) -> tuple[ChatTemplate, AnswerFormats]:
    template = ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL)
    return template, answer_formats(template)


def read(formats: AnswerFormats, text: str) -> list[tuple[str, object]]:
    found = read_all(AnswerParser(formats, functions=USE.functions), list(text))
    return [(name, json.loads(arguments)) for name, arguments in found.calls]


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_call_of_the_conversation_is_one_that_the_model_may_make(path: Path) -> None:
    template, formats = of(path)
    assert formats.shows_calls != (path.stem in CONTENT)
    if formats.tools is None:
        assert path.stem in NOT_KNOWN
        with pytest.raises(InvalidParameter, match="form that is not known"):
            constraint(None, USE, formats=formats)
        return
    assert path.stem not in NOT_KNOWN
    calls = CALLS if formats.tools.parallel else CALLS[:1]
    if formats.shows_calls:
        shown = [
            {"id": f"abcdefgh{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
        messages: list[dict[str, object]] = [
            {"role": "user", "content": "Where?"},
            {"role": "assistant", "content": "", "tool_calls": shown},
        ]
        text = template.render(messages, tools=TOOLS, add_generation_prompt=False).rpartition("Where?")[2]
    else:
        text = formats.tools.write([Call(name, arguments, "abcdefgh1") for name, arguments in calls])
    text = text[text.index(formats.tools.mark) :].removesuffix("<|eot_id|>")
    matcher = llguidance.LLMatcher(BYTES, _source(formats))
    assert not matcher.is_error(), matcher.get_error()
    assert matcher.consume_tokens(list(text.encode())), text
    assert matcher.is_accepting()
    assert read(formats, text) == calls


def _source(formats: AnswerFormats) -> str:
    spec = constraint(None, USE, formats=formats)
    assert spec is not None
    return spec.source


def test_the_forms_of_well_known_families() -> None:
    known = {
        "Qwen-Qwen3-0.6B": ("hermes", "think"),
        "Qwen3-Coder": ("qwen3-coder", None),
        "deepseek-ai-DeepSeek-V3.1": ("deepseek-v3.1", "think"),
        "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral"),
        "meta-llama-Llama-3.2-3B-Instruct": ("llama3-json", None),
        "openai-gpt-oss-120b": ("harmony", "harmony"),
        "google-gemma-4-31B-it": ("gemma4", "gemma4"),
        "GLM-4.6": ("glm", "think"),
        "moonshotai-Kimi-K2": ("kimi-k2", None),
        "MiniMax-M2": ("minimax", "think"),
        "ibm-granite-granite-3.3-2B-Instruct": ("granite", "think"),
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command-r7b", "cohere"),
        "meetkai-functionary-medium-v3.1": ("functionary-v3.1", None),
    }
    found = {path.stem: of(path)[1] for path in PUBLISHED if path.stem in known}
    assert {
        name: (one.tools and one.tools.name, one.reasoning and one.reasoning.name) for name, one in found.items()
    } == known


REFERENCE = ROOT / "docs" / "reference" / "tool-formats.md"


def test_every_form_is_in_the_reference() -> None:
    page = expanded(REFERENCE.read_text(encoding="utf-8"))
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert rows == TOOL_FORMATS.keys() | REASONING_FORMATS.keys()


UNKNOWN = (
    "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}!!{{ call.function.name }}!{{ call.function.arguments | tojson }}"
    "{% endfor %}\n{% endfor %}"
)


def test_a_template_that_writes_calls_in_another_form_has_none() -> None:
    formats = answer_formats(ChatTemplate(UNKNOWN, {}))
    assert (formats.tools, formats.shows_tools, formats.shows_calls) == (None, True, True)
    named = answer_formats(ChatTemplate(UNKNOWN, {}), tools="mistral")
    assert named.tools is not None
    assert (named.tools.name, named.shows_tools, named.shows_calls) == ("mistral", True, False)


def test_the_form_that_is_named_is_the_form_that_the_template_writes() -> None:
    template = ChatTemplate(TEMPLATES["hermes"], {})
    assert answer_formats(template, tools="hermes") == answer_formats(template)
    assert answer_formats(template).shows_calls


def test_reasoning_by_name() -> None:
    template = ChatTemplate(TEMPLATES["hermes"], {})
    found, none, named = (answer_formats(template, reasoning=one).reasoning for one in ("auto", "none", "mistral"))
    assert found is not None
    assert named is not None
    assert (found.name, none, named.name) == ("think", None, "mistral")


@pytest.mark.parametrize("name", ["tools", "reasoning"])
def test_names_that_are_not_known_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"_format is 'x'; allowed: auto, "):
        answer_formats(None, **{name: "x"})
