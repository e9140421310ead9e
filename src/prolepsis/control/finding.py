"""One thing that is wrong with a policy, or odd about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A policy with an error is not taken; a warning is for whoever wrote it."""

    severity: Severity
    path: tuple[int | str, ...]
    """Keys and list positions from the top of the file."""
    message: str
    line: int | None = None
    """Of the file, from 1."""

    @property
    def where(self) -> str:
        """The path as people write it, such as rules[2].match.prompt_tokens."""
        return shown_path(self.path)

    def plain(self) -> dict[str, object]:
        """Return it for programs."""
        return {"severity": self.severity, "path": self.where, "line": self.line, "message": self.message}

    def in_file(self, name: str) -> str:
        """Return it as one line that names file and line."""
        place = name if self.line is None else f"{name}:{self.line}"
        return f"{place}: {f'{self.where} ' if self.path else ''}{self.message}"


def shown_path(path: Sequence[int | str]) -> str:
    """Return keys joined by dots, with positions in brackets."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part[:64]}"
    return text
