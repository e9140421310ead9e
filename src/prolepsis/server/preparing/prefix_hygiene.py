"""Lines of system texts that differ between requests of one agent, and would end the prefix that the cache has.

A line of attribution says nothing to a model: it is left out. Other lines are what the client wants the model to read.
They are moved to the end of the conversation, and only those that the operator names (`move_lines`).
"""

import re
from collections.abc import Mapping, Sequence

from prolepsis.core.config import MovedLine
from prolepsis.server.preparing.bodies import Message

_SYSTEM = ("system", "developer")
_ATTRIBUTION = re.compile(r"^x-anthropic-billing-header:[^\n]*\n*", re.MULTILINE)
"""Claude Code's, in its system text, for its maker's accounts."""
_BEFORE = r"^[^\w\n]*(?:<\w{1,32}>[ \t]*)?"
"""What a line may begin with: a bullet, a mark."""
_LINES: Mapping[MovedLine, re.Pattern[str]] = {
    "date": re.compile(
        _BEFORE + r"(?:today(?:'s date)?|(?:the )?current[ _](?:date|time)(?: and time)?)\b"
        r"[^\n]{0,64}?(?:\b\d{4}\b|\d:\d\d)[^\n]*\n?",
        re.MULTILINE | re.IGNORECASE,
    ),
    "tokens_left": re.compile(
        _BEFORE + r"(?:token usage|(?:tokens?|context)(?: window)? (?:left|remaining))\b[^\n]*?\d[^\n]*\n?",
        re.MULTILINE | re.IGNORECASE,
    ),
}


def without_attribution(messages: Sequence[Message]) -> list[Message]:
    """Return messages without lines of attribution in system texts."""
    return [one for message in messages if (one := _without(_ATTRIBUTION, message)) is not None] or list(messages)


def moved(messages: Sequence[Message], names: Sequence[MovedLine]) -> tuple[list[Message], list[MovedLine]]:
    """Return messages with these lines of the first system texts behind the last message, and which there were."""
    kept, lines, found = list(messages), list[str](), list[MovedLine]()
    first_turn = next((i for i, one in enumerate(messages) if one.role not in _SYSTEM), 0)
    if not first_turn or messages[-1].role not in ("user", "tool"):  # the answer goes on behind what it has begun with
        return kept, found
    for name in names:
        for i, message in enumerate(kept[:first_turn]):
            if here := [line[0].strip() for line in _LINES[name].finditer(message.content or "")]:
                lines, found = lines + here, [*found, name]
                kept[i] = message.model_copy(update={"content": _LINES[name].sub("", message.content or "")})
    if lines:
        reminder = "<system-reminder>\n" + "\n".join(lines) + "\n</system-reminder>"
        kept[-1] = kept[-1].model_copy(update={"content": f"{kept[-1].content or ''}\n\n{reminder}"})
    return [one for one in kept if one.role not in _SYSTEM or one.content], list(dict.fromkeys(found))


def _without(lines: re.Pattern[str], message: Message) -> Message | None:
    """Return a message without these lines, None where it had nothing else; other roles stay as they are."""
    if message.role not in _SYSTEM or not message.content or not lines.search(message.content):
        return message
    content = lines.sub("", message.content)
    return message.model_copy(update={"content": content}) if content else None
