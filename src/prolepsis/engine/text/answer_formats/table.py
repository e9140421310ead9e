"""The forms in which families of models write tool calls, one row each; `choose` says how a model's own is found.

Arguments are one JSON object where a row has no others.
"""

from collections.abc import Mapping
from types import MappingProxyType

from prolepsis.engine.text.answer_formats.json_arguments import JsonArguments
from prolepsis.engine.text.answer_formats.literal_arguments import GEMMA, PYTHON, LiteralArguments
from prolepsis.engine.text.answer_formats.tagged_arguments import TaggedArguments
from prolepsis.engine.text.answer_formats.tool_format import ToolFormat

_OBJECT = '{"name": "⟨name⟩", "arguments": ⟨arguments⟩}'
_KEYWORDS = LiteralArguments(PYTHON, "=")
_QWEN_XML = TaggedArguments("<parameter=⟨key⟩>\n⟨value⟩\n</parameter>\n", python_too=True)
_GLM = "<arg_key>⟨key⟩</arg_key>{0}<arg_value>⟨value⟩</arg_value>{0}"
_DSML = TaggedArguments('<｜DSML｜parameter name="⟨key⟩" string="⟨is string⟩">⟨value⟩</｜DSML｜parameter>\n')
_DSML_CALL = '<｜DSML｜invoke name="⟨name⟩">\n⟨arguments⟩</｜DSML｜invoke>'

HERMES = ToolFormat(
    name="hermes",
    mark="<tool_call>",
    call=f"<tool_call>\n{_OBJECT}\n</tool_call>",
    fenced=True,
    hints=('<tool_call>\n{"name"', '<tool_call>\\n{\\"name\\"', "<tool_call>"),
)
"""Qwen 2.5 and 3, Hermes, Granite 4, SmolLM3, Reka, and models whose template says nothing of calls."""

ROWS = (
    HERMES,
    ToolFormat(
        name="llama3-json",
        mark='{"name": "',
        call='{"name": "⟨name⟩", "parameters": ⟨arguments⟩}',
        between="; ",
        at_start=True,
        parallel=False,
    ),
    ToolFormat(
        name="pythonic",
        mark="[",
        begin="[",
        call="⟨name⟩(⟨arguments⟩)",
        between=", ",
        end="]",
        arguments=_KEYWORDS,
        at_start=True,
    ),
    ToolFormat(
        name="lfm2",
        mark="<|tool_call_start|>",
        begin="<|tool_call_start|>[",
        call="⟨name⟩(⟨arguments⟩)",
        between=", ",
        end="]<|tool_call_end|>",
        arguments=_KEYWORDS,
        hints=("<|tool_call_start|>", "<|tool_list_start|>"),
    ),
    ToolFormat(
        name="mistral-list",
        mark="[TOOL_CALLS]",
        begin="[TOOL_CALLS][",
        call='{"name": "⟨name⟩", "arguments": ⟨arguments⟩, "id": "⟨id⟩"}',
        between=", ",
        end="]",
        ids="nine",
    ),
    ToolFormat(
        name="mistral",
        mark="[TOOL_CALLS]",
        call="[TOOL_CALLS]⟨name⟩[ARGS]⟨arguments⟩",
        between="",
        ids="nine",
        hints=("[TOOL_CALLS]",),
    ),
    ToolFormat(
        name="mistral-call-id",
        mark="[TOOL_CALLS]",
        call="[TOOL_CALLS]⟨name⟩[CALL_ID]⟨id⟩[ARGS]⟨arguments⟩",
        between="",
        ids="nine",
    ),
    ToolFormat(
        name="deepseek-v3",
        mark="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>⟨name⟩\n```json\n⟨arguments⟩\n```<｜tool▁call▁end｜>",
        end="<｜tool▁calls▁end｜>",
        hints=("<｜tool▁calls▁begin｜>",),
    ),
    ToolFormat(
        name="deepseek-v3.1",
        mark="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>⟨name⟩<｜tool▁sep｜>⟨arguments⟩<｜tool▁call▁end｜>",
        between="",
        end="<｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="deepseek-v3.2",
        mark="<｜DSML｜function_calls>",
        begin="<｜DSML｜function_calls>\n",
        call=_DSML_CALL,
        end="\n</｜DSML｜function_calls>",
        arguments=_DSML,
    ),
    ToolFormat(
        name="deepseek-v4",
        mark="<｜DSML｜tool_calls>",
        begin="<｜DSML｜tool_calls>\n",
        call=_DSML_CALL,
        end="\n</｜DSML｜tool_calls>",
        arguments=_DSML,
    ),
    ToolFormat(
        name="qwen3-coder",
        mark="<tool_call>",
        call="<tool_call>\n<function=⟨name⟩>\n⟨arguments⟩</function>\n</tool_call>",
        arguments=_QWEN_XML,
        hints=("<function=",),
    ),
    ToolFormat(
        name="seed",
        mark="<seed:tool_call>",
        call="<seed:tool_call>\n<function=⟨name⟩>\n⟨arguments⟩</function>\n</seed:tool_call>",
        arguments=TaggedArguments("<parameter=⟨key⟩>⟨value⟩</parameter>\n", python_too=True),
    ),
    ToolFormat(
        name="glm",
        mark="<tool_call>",
        call="<tool_call>⟨name⟩\n⟨arguments⟩</tool_call>",
        arguments=TaggedArguments(_GLM.format("\n")),
        hints=("<arg_key>",),
    ),
    ToolFormat(
        name="glm-tight",
        mark="<tool_call>",
        call="<tool_call>⟨name⟩⟨arguments⟩</tool_call>",
        between="",
        arguments=TaggedArguments(_GLM.format("")),
    ),
    ToolFormat(
        name="ling",
        mark="<tool_call>",
        call="<tool_call>⟨name⟩\n⟨arguments⟩\n</tool_call>",
        arguments=TaggedArguments("<arg_key>⟨key⟩</arg_key>\n<arg_value>⟨value⟩</arg_value>"),
    ),
    ToolFormat(
        name="hunyuan",
        mark="<tool_calls:opensource>",
        begin="<tool_calls:opensource>\n",
        call="<tool_call:opensource>⟨name⟩<tool_sep:opensource>\n⟨arguments⟩</tool_call:opensource>",
        end="\n</tool_calls:opensource>",
        arguments=TaggedArguments(
            "<arg_key:opensource>⟨key⟩</arg_key:opensource>\n<arg_value:opensource>⟨value⟩</arg_value:opensource>\n"
        ),
    ),
    ToolFormat(
        name="minimax",
        mark="<minimax:tool_call>",
        begin="<minimax:tool_call>\n",
        call='<invoke name="⟨name⟩">\n⟨arguments⟩</invoke>',
        end="\n</minimax:tool_call>",
        arguments=TaggedArguments('<parameter name="⟨key⟩">⟨value⟩</parameter>\n'),
    ),
    ToolFormat(
        name="minimax-m1",
        mark="<tool_calls>",
        begin="<tool_calls>\n",
        call=_OBJECT,
        end="\n</tool_calls>",
    ),
    ToolFormat(
        name="minicpm",
        mark="<function name=",
        call='<function name="⟨name⟩">⟨arguments⟩</function>',
        arguments=TaggedArguments('<param name="⟨key⟩">⟨value⟩</param>', is_cdata=True, python_too=True),
    ),
    ToolFormat(
        name="kimi-k2",
        mark="<|tool_calls_section_begin|>",
        begin="<|tool_calls_section_begin|>",
        call="<|tool_call_begin|>functions.⟨name⟩:⟨index⟩<|tool_call_argument_begin|>⟨arguments⟩<|tool_call_end|>",
        between="",
        end="<|tool_calls_section_end|>",
        ids="numbered",
        hints=("<|tool_calls_section_begin|>",),
    ),
    ToolFormat(
        name="kimi-k3",
        mark="<|open|>tools<|sep|>",
        begin="<|open|>tools<|sep|>",
        call='<|open|>call tool="⟨name⟩" index="⟨number⟩"<|sep|>⟨arguments⟩<|close|>call<|sep|>',
        between="",
        end="<|close|>tools<|sep|>",
        arguments=TaggedArguments('<|open|>argument key="⟨key⟩" type="⟨type⟩"<|sep|>⟨value⟩<|close|>argument<|sep|>'),
    ),
    ToolFormat(
        name="granite",
        mark="<|tool_call|>",
        begin="<|tool_call|>[",
        call=_OBJECT,
        between=", ",
        end="]",
        hints=("<|tool_call|>",),
    ),
    ToolFormat(
        name="phi4",
        mark="<|tool_call|>",
        begin="<|tool_call|>[",
        call=_OBJECT,
        between=", ",
        end="]<|/tool_call|>",
        hints=("<|/tool_call|>", "<|/tool|>"),
    ),
    ToolFormat(
        name="gemma4",
        mark="<|tool_call>",
        call="<|tool_call>call:⟨name⟩{⟨arguments⟩}<tool_call|>",
        between="",
        arguments=LiteralArguments(GEMMA, ":"),
    ),
    ToolFormat(
        name="command-r",
        mark="Action:\n```json",
        begin="Action:\n```json\n[\n",
        call='    {\n        "tool_name": "⟨name⟩",\n        "parameters": ⟨arguments⟩\n    }',
        between=",\n",
        end="\n]```",
        arguments=JsonArguments(is_indented=True, margin=8),
    ),
    ToolFormat(
        name="command-r7b",
        mark="<|START_ACTION|>",
        begin="<|START_ACTION|>[\n    ",
        call='{"tool_call_id": "⟨index⟩", "tool_name": "⟨name⟩", "parameters": ⟨arguments⟩}',
        between=",\n    ",
        end="\n]<|END_ACTION|>",
    ),
    ToolFormat(
        name="functionary-v3.1",
        mark="<function=",
        call="<function=⟨name⟩>⟨arguments⟩</function>",
        between="",
    ),
    ToolFormat(
        name="nemotron",
        mark="<TOOLCALL>",
        begin="<TOOLCALL>[",
        call=_OBJECT,
        between=", ",
        end="]</TOOLCALL>",
    ),
    ToolFormat(
        name="apriel",
        mark="<tool_calls>",
        begin="<tool_calls>[",
        call=_OBJECT,
        between=", ",
        end="]</tool_calls>",
    ),
    ToolFormat(
        name="apertus",
        mark="<|tools_prefix|>",
        begin="<|tools_prefix|>[",
        call='{"⟨name⟩": ⟨arguments⟩}',
        between=", ",
        end="]<|tools_suffix|>",
    ),
    ToolFormat(
        name="gigachat3",
        mark="<|message_sep|>\n\nfunction call<|role_sep|>\n",
        call=f"<|message_sep|>\n\nfunction call<|role_sep|>\n{_OBJECT}",
        parallel=False,
    ),
    ToolFormat(
        name="gigachat3.1",
        mark="<|function_call|>",
        call=f"<|function_call|>{_OBJECT}",
        parallel=False,
    ),
    ToolFormat(
        name="solar",
        mark="<|tool_calls|>",
        begin="<|tool_calls|>",
        call="<|tool_call:begin|>⟨id⟩<|tool_call:name|>⟨name⟩<|tool_call:args|>⟨arguments⟩<|tool_call:end|>",
        between="",
        end="",
        ids="nine",
    ),
    ToolFormat(
        name="harmony",
        mark=" to=functions.",
        call=" to=functions.⟨name⟩<|channel|>commentary json<|message|>⟨arguments⟩",
        also=" <|constrain|>json<|message|>",
        between="<|call|>",
        parallel=False,
    ),
)
"""Of rows that a template's own calls fit equally well, the first is taken."""

TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType({row.name: row for row in ROWS})
