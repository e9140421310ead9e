"""What stands before a route, so that no client's requests hold up another client's tokens."""

from dataclasses import dataclass, field

from prolepsis.web.rounds import Starts
from prolepsis.web.turns import Turns
from prolepsis.web.uploads import Uploads


@dataclass(frozen=True, slots=True)
class Intake:
    """The bounds of one application."""

    uploads: Uploads
    starts: Starts = field(default_factory=Starts)
    turns: Turns = field(default_factory=Turns)
