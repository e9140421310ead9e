"""The phases of a start on a terminal: a live line of the one under way, and a line for each that has ended."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from prolepsis.core.phases import LoggedPhases, Phase, Phases, PhaseView, watching
from prolepsis.core.terminal.output import stderr


class _LivePhases:
    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status

    def tick(self, phase: Phase) -> None:
        self._status.update(f"{escape(phase.describe())}  [dim]{phase.seconds:.0f} s[/]")

    def ended(self, phase: Phase) -> None:
        self._console.print(f"[dim]{escape(phase.reached)}  {phase.seconds:.1f} s[/]", soft_wrap=True)


@contextmanager
def shown_phases() -> Iterator[Phases]:
    """Show what the block names as phases on standard error: live on a terminal, else as log lines."""
    console = stderr()
    if not console.is_terminal:
        yield from _watched(LoggedPhases())
        return
    with console.status("loading") as status:
        yield from _watched(_LivePhases(console, status))


def _watched(view: PhaseView) -> Iterator[Phases]:
    phases = Phases(view)
    with watching(phases):
        yield phases
