"""An observer whose figures are reported elsewhere: in the server's process."""

from collections.abc import Callable

from prolepsis.core.figures import Figure
from prolepsis.engine.process.messages import Observed


class Recorder:
    """An `EngineObserver` that passes each figure on as a message."""

    def __init__(self, put: Callable[[Observed], None]) -> None:
        """`put` is called from the engine's thread."""
        self._put = put

    def observe(self, figure: Figure) -> None:
        self._put(Observed(figure))
