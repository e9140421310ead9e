"""How one model writes answers: its forms of calls and reasoning, and what its chat template does for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from prolepsis.engine.text.answer_formats.table import HERMES
from prolepsis.engine.text.answer_formats.tool_format import ToolFormat


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """One pair of marks. White space around them belongs to them."""

    name: str
    start: str
    end: str
    turn: str = ""  # text between reasoning and what follows it
    content: str = ""  # text before content that a form binds
    frames: tuple[str, ...] = ()  # texts around the parts of an answer, which belong to none of them
    anywhere: bool = False  # an answer may reason more than once; otherwise only at its start

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.start, self.end, *self.frames)


ROWS = (
    ReasoningFormat(
        "harmony",
        "<|channel|>analysis<|message|>",
        "<|end|>",
        turn="<|start|>assistant",
        content="<|channel|>final<|message|>",
        frames=(
            "<|start|>assistant",
            "<|channel|>final<|message|>",
            "<|channel|>commentary<|message|>",
            "<|channel|>commentary",
            "<|end|>",
            "<|call|>",
        ),
        anywhere=True,
    ),
    ReasoningFormat(
        "cohere",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        frames=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("gemma4", "<|channel>thought", "<channel|>", anywhere=True),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    ReasoningFormat("minimax-m3", "<mm:think>", "</mm:think>"),
    ReasoningFormat("hunyuan", "<think:opensource>", "</think:opensource>"),
    ReasoningFormat(
        "solar",
        "<|think|>",
        "<|end|>",
        turn="<|begin|>assistant",
        content="<|content|>",
        frames=("<|begin|>assistant", "<|content|>"),
    ),
    ReasoningFormat(
        "kimi-k3",
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        content="<|open|>response<|sep|>",
        frames=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    ReasoningFormat("apriel", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ReasoningFormat("granite", "Here is my thought process:", "Here is my response:"),
    ReasoningFormat("think", "<think>", "</think>"),
)
"""Of rows whose marks a template holds, the first is taken: the plain marks are also named in other families' texts."""

REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType({row.name: row for row in ROWS})
THINK = REASONING_FORMATS["think"]


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """What answers are read by, and prompts written."""

    tools: ToolFormat | None = HERMES  # None: the template writes calls in a form that is not known here
    reasoning: ReasoningFormat | None = None  # None: answers are text from their start on
    shows_tools: bool = False  # the template lists the tools; otherwise a system message does
    shows_calls: bool = False
    """It writes the calls of a conversation; otherwise they are put into the messages' text."""
    shows_results: bool = False
    """It writes messages of the role `tool`; otherwise they become messages of the user."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All fixed texts that answers are read by; the most common marks of reasoning are always seen."""
        tools = self.tools.texts if self.tools is not None else ()
        return (*tools, *(self.reasoning or THINK).texts)


class Thinking(Enum):
    NONE = "none"  # the text is shown as it is
    POSSIBLE = "possible"  # the answer may open with reasoning
    OPENED = "opened"  # the prompt ends with the mark that opens reasoning: the answer begins inside
