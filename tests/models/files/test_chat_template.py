"""Chat templates render in a sandbox; what they refuse is the caller's fault."""

import pytest

from prolepsis.core.errors import InvalidParameter, ModelLoadError
from prolepsis.models.files.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "<hi> é"}]


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
    ["{{ raise_exception('roles must alternate') }}", "{{ messages[0].content + 1 }}", "{{ ''.__class__.mro() }}"],
)
def test_a_refusal_is_the_callers_fault(source: str) -> None:
    with pytest.raises(InvalidParameter, match="chat template refuses"):
        ChatTemplate(source, {}).render(MESSAGES)


def test_a_broken_template_is_the_models_fault() -> None:
    with pytest.raises(ModelLoadError, match="broken"):
        ChatTemplate("{% if %}", {})
