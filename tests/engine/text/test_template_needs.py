"""What a template takes is found by rendering, and messages are brought into its form; nothing given gets lost."""

from pathlib import Path
from typing import Any

import pytest

from prolepsis.core.given_text import GivenText, given
from prolepsis.engine.text.chat_template import ChatTemplate, Message
from prolepsis.engine.text.template_needs import FittingTemplate, TemplateNeeds, fitted, needs_of
from tests.engine.models.families import FOLDER, HERMES, NEEDS_PUBLISHED, TEMPLATES, template_of

ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}({{ m.role }}: {{ m.content }}){% endfor %}"
)
FIRST = (
    "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% endif %}"
    "{% for m in messages if m.role != 'system' %}({{ m.role }}: {{ m.content }}){% endfor %}"
)
LAST = (
    "{% set ns = namespace(text='') %}"
    "{% for m in messages if m.role == 'system' %}{% set ns.text = m.content %}{% endfor %}"
    "[{{ ns.text }}]{% for m in messages if m.role != 'system' %}({{ m.role }}: {{ m.content }}){% endfor %}"
)
SILENT = "{% for m in messages if m.role != 'system' %}({{ m.role }}: {{ m.content }}){% endfor %}"
PARTS = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
JOINED = (
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "[{{ c.function.name + ' ' + c.function.arguments }}]{% endfor %}{% else %}({{ m.content }}){% endif %}{% endfor %}"
)
NULL = (
    "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
    "[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% else %}({{ m.content }}){% endif %}"
    "{% endfor %}"
)
DESCRIBED = (
    "{% for tool in tools or [] %}{{ tool.function.name + ': ' + tool.function.description }}{% endfor %}"
    "{% for m in messages %}({{ m.role }}: {{ m.content }}){% endfor %}"
)
SYSTEM, USER, ANSWER = (
    {"role": role, "content": text} for role, text in (("system", "S"), ("user", "U"), ("assistant", "A"))
)


def call(content: str = "", arguments: object = None) -> Message:
    function = {"name": "f", "arguments": {"town": "Žilina"} if arguments is None else arguments}
    return {"role": "assistant", "content": content, "tool_calls": [{"id": "abcdefghi", "function": function}]}


def rendered(source: str, messages: list[Message]) -> str:
    template = ChatTemplate(source, {})
    return template.render(fitted(messages, needs_of(template)))


@pytest.mark.parametrize(
    ("source", "needs"),
    [
        (TEMPLATES["chatml"], TemplateNeeds()),
        (HERMES, TemplateNeeds()),
        (ALTERNATING, TemplateNeeds(no_system=True, alternates=True)),
        (FIRST, TemplateNeeds(one_system=True)),
        (LAST, TemplateNeeds(one_system=True)),
        (SILENT, TemplateNeeds(no_system=True)),
        (PARTS, TemplateNeeds(parts=True)),
        (JOINED, TemplateNeeds(text_arguments=True)),
        (NULL, TemplateNeeds(null_content=True)),
        (DESCRIBED, TemplateNeeds(descriptions=True)),
        ("nothing of it", TemplateNeeds()),
    ],
)
def test_needs_are_found(source: str, needs: TemplateNeeds) -> None:
    assert needs_of(ChatTemplate(source, {})) == needs


def test_a_function_without_a_description_is_shown() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert FittingTemplate(ChatTemplate(DESCRIBED, {})).render([USER], tools=[tool]) == "f: (user: U)"


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([SYSTEM, USER], "(user: S\n\nU)"),
        ([SYSTEM, SYSTEM, USER, ANSWER], "(user: S\n\nS\n\nU)(assistant: A)"),
        ([SYSTEM, ANSWER], "(user: S)(assistant: A)"),
        ([USER, SYSTEM, ANSWER], "(user: U\n\nS)(assistant: A)"),
        ([SYSTEM], "(user: S)"),
        ([USER, ANSWER], "(user: U)(assistant: A)"),
    ],
)
@pytest.mark.parametrize("source", [ALTERNATING, SILENT])
def test_a_system_message_goes_to_the_user_where_there_is_no_such_role(
    source: str, messages: list[Message], text: str
) -> None:
    assert rendered(source, messages) == text


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([SYSTEM, USER], "[S](user: U)"),
        ([SYSTEM, SYSTEM, USER, ANSWER], "[S\n\nS](user: U)(assistant: A)"),
        ([SYSTEM, USER, ANSWER, SYSTEM, USER], "[S](user: U)(assistant: A)(user: S\n\nU)"),
    ],
)
@pytest.mark.parametrize("source", [FIRST, LAST])
def test_system_messages_are_one_where_a_template_shows_no_more(
    source: str, messages: list[Message], text: str
) -> None:
    assert rendered(source, messages) == text


def test_messages_of_the_user_in_a_row_are_one_where_a_template_refuses_two() -> None:
    assert rendered(ALTERNATING, [USER, USER, ANSWER, SYSTEM, USER, USER]) == (
        "(user: U\n\nU)(assistant: A)(user: S\n\nU\n\nU)"
    )
    assert rendered(TEMPLATES["chatml"], [USER, USER]).count("<|im_start|>user") == 2


def test_calls_are_shown_in_the_form_that_the_template_takes() -> None:
    assert rendered(JOINED, [USER, call()]) == '(U)[f {"town": "Žilina"}]'
    assert rendered(JOINED, [USER, call(arguments='{"a')]) == '(U)[f {"a]'
    assert rendered(NULL, [USER, call("First.")]) == '(U)(First.)[f {"town": "Žilina"}]'
    assert rendered(PARTS, [USER]) == "U"


def test_what_was_given_stays_marked() -> None:
    messages: list[Any] = [{**one, "content": given(one["content"])} for one in (SYSTEM, USER)]
    messages.append({**call(), "tool_calls": given(call()["tool_calls"])})
    text = rendered(JOINED, messages)
    assert isinstance(text, GivenText)
    assert not text.holds_given(0, 1)
    assert text.holds_given(text.index("town"), text.index("town") + 1)
    folded = rendered(SILENT, messages[:2])
    assert isinstance(folded, GivenText)
    assert folded.spans == ((7, 8), (10, 11))


@NEEDS_PUBLISHED
@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("google-gemma-2-2b-it", TemplateNeeds(no_system=True, alternates=True)),
        ("meetkai-functionary-medium-v3.2", TemplateNeeds(text_arguments=True)),
        (
            "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
            TemplateNeeds(one_system=True, text_arguments=True, null_content=True),
        ),
        ("Qwen-Qwen2.5-7B-Instruct", TemplateNeeds()),
        ("mistralai-Mistral-Nemo-Instruct-2407", TemplateNeeds(one_system=True, alternates=True)),
        ("meta-llama-Llama-3.1-8B-Instruct", TemplateNeeds()),
        ("HuggingFaceTB-SmolLM3-3B", TemplateNeeds(one_system=True)),
    ],
)
def test_needs_of_published_templates(name: str, needs: TemplateNeeds) -> None:
    assert needs_of(ChatTemplate(template_of(name), {"bos_token": "<s>", "eos_token": "</s>"})) == needs


@NEEDS_PUBLISHED
@pytest.mark.parametrize("file", sorted(Path(FOLDER).glob("templates/*.jinja")), ids=lambda file: file.stem)
def test_published_templates_show_what_agents_send(file: Path) -> None:
    """Two messages of the system, two of the user, and one of the system later."""
    if file.stem == "fireworks-ai-llama-3-firefunction-v2":  # takes variables of its own
        return
    template = FittingTemplate(ChatTemplate(file.read_text(), {"bos_token": "<s>", "eos_token": "</s>"}))
    texts = ["rules-1", "rules-2", "files-3", "asked-4", "answered-5", "rules-6", "asked-7"]
    roles = ["system", "system", "user", "user", "assistant", "system", "user"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    shown = template.render(messages, tools=[tool])
    assert [text for text in texts if text not in shown] == []
