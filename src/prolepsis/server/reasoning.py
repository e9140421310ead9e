"""Where a model thinks before it answers: `<think>...</think>`."""

from enum import Enum
from typing import Literal

from prolepsis.server.tokenizer import Tokenizer

THINK, THINK_END = "<think>", "</think>"
_TAIL = 8
"""Tokens at the prompt's end that can hold an opening mark."""

ReasoningOption = Literal["auto", "on", "off"]


class Thinking(Enum):
    NONE = "none"
    """The text is shown as it is."""
    POSSIBLE = "possible"
    """The answer may open with `<think>`."""
    OPENED = "opened"
    """The prompt ends with `<think>`: the answer begins inside."""


def thinking_of(option: ReasoningOption, prompt: list[int], tokenizer: Tokenizer) -> Thinking:
    """Return what to expect of the answer to `prompt`; auto: where the chat template knows the marks."""
    knows = THINK_END in (tokenizer.chat_template or "")
    if option == "off" or (option == "auto" and not knows):
        return Thinking.NONE
    tail = tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
    return Thinking.OPENED if tail.endswith(THINK) else Thinking.POSSIBLE
