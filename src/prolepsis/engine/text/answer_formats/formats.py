"""How one model writes answers: its forms of calls and reasoning, and what its chat template does for them."""

from dataclasses import dataclass
from enum import Enum

from prolepsis.engine.text.answer_formats.reasoning import THINK, ReasoningFormat
from prolepsis.engine.text.answer_formats.table import HERMES
from prolepsis.engine.text.answer_formats.tool_format import ToolFormat


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """What answers are read by, and prompts written."""

    tools: ToolFormat | None = HERMES
    """None: the template writes calls in a form that is not known here."""
    reasoning: ReasoningFormat | None = None
    """None: answers are text from their start on."""
    shows_tools: bool = False
    """The template lists the tools; otherwise a system message does."""
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
    NONE = "none"
    """The text is shown as it is."""
    POSSIBLE = "possible"
    """The answer may open with reasoning."""
    OPENED = "opened"
    """The prompt ends with the mark that opens reasoning: the answer begins inside."""
