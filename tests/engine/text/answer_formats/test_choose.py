"""Names of forms override what a chat template shows; templates that no row fits are told apart."""

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.engine.text.answer_formats.choose import answer_formats
from prolepsis.engine.text.chat_template import ChatTemplate
from tests.engine.models.families import TEMPLATES

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
