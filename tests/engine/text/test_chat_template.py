"""Chat templates render in a sandbox; what they refuse is the caller's fault."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from prolepsis.core.errors import InvalidParameter, ModelLoadError
from prolepsis.core.given_text import GivenText, given
from prolepsis.engine.text.chat_template import ChatTemplate, one_template

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "<hi> é"}]
ARGUMENTS = {"zone": "ü", "a": 1}
CALLED: list[dict[str, Any]] = [
    *MESSAGES,
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I look it up.",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}],
    },
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "sun"},
]
PARAMETERS = {
    "type": "object",
    "properties": {"zone": {"type": "string", "description": "d"}, "a": {"type": "integer"}},
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "é <b>", "parameters": PARAMETERS}}]


def test_it_renders_with_the_names_templates_expect() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 5 %}{% break %}{% endif %}{{ m | tojson }}"
        "{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ mood }}{% if add_generation_prompt %}>{% endif %}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    text = template.render(MESSAGES, tools=[{"name": "f"}], variables={"mood": "calm"})
    assert text == '<s>{"role": "user", "content": "<hi> é"}[{"name": "f"}]calm>'
    assert not template.render(MESSAGES, add_generation_prompt=False).endswith(">")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.mro() }}",
        "{% macro deeper() %}{{ deeper() }}{% endmacro %}{{ deeper() }}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_refusal_is_the_callers_fault(source: str) -> None:
    with pytest.raises(InvalidParameter, match="chat template refuses"):
        ChatTemplate(source, {}).render(MESSAGES)


def test_a_broken_template_is_the_models_fault() -> None:
    with pytest.raises(ModelLoadError, match="broken"):
        ChatTemplate("{% if %}", {})


def of_transformers(source: str, messages: object, tools: object) -> str:
    """Return what transformers makes of the template, or the type of its error."""
    try:
        texts, _ = render_jinja_template(
            conversations=[messages], tools=tools, chat_template=source, add_generation_prompt=True, bos_token="<s>"
        )
    except Exception as error:
        return type(error).__name__
    return str(texts[0])


@pytest.mark.parametrize(
    "source",
    [
        "{{ tools | tojson(separators=(',', ':')) }}",
        "{{ tools | tojson(sort_keys=True) }}",
        "{{ tools | tojson(indent=2, separators=(',', ': ')) }}",
        "{{ tools | tojson(indent=1) }}",
        "{{ tools | tojson(True) }}",
        "{{ tools | tojson(ensure_ascii=True, indent='\t') }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}",
        "{%- for m in messages -%}\n {%- generation -%} {{ m.role }} {%- endgeneration -%}\n{%- endfor -%}",
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{% for m in messages %}{{ m.thinking }}{{ m.reasoning_content }}{% endfor %}",
        "{{ dict(a=1) | tojson }}{{ messages[1].tool_calls[0].function.arguments | items | list }}",
    ],
)
def test_it_renders_as_transformers_does(source: str) -> None:
    expected = of_transformers(source, CALLED, TOOLS)
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render(CALLED, tools=TOOLS) == expected
    assert template.render(given(CALLED), tools=given(TOOLS)) == expected


def test_json_of_given_texts_counts_as_given_in_any_order_of_its_keys() -> None:
    text = ChatTemplate("<b>{{ tools | tojson(sort_keys=True) }}", {}).render([], tools=given(TOOLS))
    assert isinstance(text, GivenText)
    assert text.spans == ((len("<b>"), len(text)),)


WITH_TOOLS = "\n  {% for tool in tools %}{{ tool | tojson }}{% endfor %}\n"
DEFAULT = "{% if tools %}never{% endif %}  {{ messages[0].content }}\n  {# a remark #}\n\n"
CITED = " {{ documents[0].title }}"


@pytest.mark.parametrize(
    ("source", "tools", "documents"),
    [
        (WITH_TOOLS, TOOLS, None),
        (WITH_TOOLS, TOOLS, [{"title": "t"}]),
        (CITED, None, [{"title": "t"}]),
        (DEFAULT, None, None),
    ],
)
def test_one_of_several_templates_renders_as_it_does_alone(source: str, tools: Any, documents: Any) -> None:
    several = one_template({"tool_use": WITH_TOOLS, "default": DEFAULT, "rag": CITED})
    assert several is not None
    values: dict[str, Any] = {"tools": tools, "variables": {"documents": documents}}
    expected = ChatTemplate(source, {}).render(MESSAGES, **values)
    assert ChatTemplate(several, {}).render(MESSAGES, **values) == expected


def test_without_a_default_there_is_no_template() -> None:
    assert one_template({"tool_use": WITH_TOOLS}) is None
    assert one_template({"default": DEFAULT}) == DEFAULT


def test_documents_are_none_where_a_request_has_none() -> None:
    template = ChatTemplate("{{ documents is none }}", {})
    assert template.render(MESSAGES) == "True"
    assert template.render(MESSAGES, variables={"documents": []}) == "False"
