"""The marks between which families of models reason, one row each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """One pair of marks. White space around them belongs to them."""

    name: str
    start: str
    end: str
    turn: str = ""
    """Text between reasoning and what follows it."""
    content: str = ""
    """Text before content that a form binds."""
    frames: tuple[str, ...] = ()
    """Texts around the parts of an answer, which belong to none of them."""
    anywhere: bool = False
    """An answer may reason more than once; otherwise only at its start."""

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
