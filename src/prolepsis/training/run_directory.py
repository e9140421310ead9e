"""The directory of a training: data, checkpoint, export and report."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prolepsis.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The paths below `root`."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint.pt"

    @property
    def vocabulary(self) -> Path:
        """Tokens of the draft vocabulary, fixed when training begins: more data must not change it."""
        return self.root / "vocabulary.json"

    @property
    def exported(self) -> Path:
        """The newest export, ready to serve."""
        return self.root / "head"

    @property
    def result(self) -> Path:
        """Figures for programs; `prolepsis train estimate` reads them."""
        return self.root / "result.json"

    @property
    def report(self) -> Path:
        return self.root / "report.md"

    def create(self, *, resume: bool) -> None:
        """Create the directory; raises `ConfigError` if it is in use and `resume` is false."""
        if not resume and self.root.is_dir() and any(self.root.iterdir()):
            raise ConfigError(
                f"{self.root} is not empty; allowed: a new directory, or --resume to continue", param="out"
            )
        self.root.mkdir(parents=True, exist_ok=True)

    def read_result(self) -> dict[str, Any]:
        """Return the figures of a finished training; raises `ConfigError` if there are none."""
        try:
            result = json.loads(self.result.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.result} is not the result of a training: {error}", param="runs") from error
        assert isinstance(result, dict), "a JSON object, as `write_result` wrote it"
        return result
