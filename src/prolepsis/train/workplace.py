"""The folder of one training: where data, checkpoint, export and report lie."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prolepsis.core.errors import ConfigError

HEAD, MODEL = "head", "model"


@dataclass(frozen=True, slots=True)
class Workplace:
    """`root` is what the user named; a head and a draft model may be trained in one folder, from one text."""

    root: Path
    product: str = HEAD
    """`HEAD` or `MODEL`: what is trained."""

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def checkpoint(self) -> Path:
        return self.file("checkpoint.pt")

    @property
    def vocabulary(self) -> Path:
        """Tokens of the draft vocabulary, fixed when training begins: more data must not change it."""
        return self.file("vocabulary.json")

    @property
    def exported(self) -> Path:
        """The newest export, ready to serve: DIR/head or DIR/model."""
        return self.root / self.product

    @property
    def result(self) -> Path:
        """Figures for programs: `prolepsis train plan` compares them with what was predicted."""
        return self.file("result.json")

    @property
    def report(self) -> Path:
        return self.file("report.md")

    def file(self, name: str) -> Path:
        """Return the file called `name`, with the product in front of the name unless that is a head."""
        return self.root / (name if self.product == HEAD else f"{self.product}-{name}")

    def begin(self, *, resume: bool) -> None:
        """Make the folder; raises `ConfigError` where it holds a training that is not to be resumed."""
        if not resume and self.root.is_dir() and any(self.root.iterdir()):
            raise ConfigError(f"{self.root} is not empty; allowed: a new folder, or --resume to go on", param="out")
        self.root.mkdir(parents=True, exist_ok=True)

    def read_result(self) -> dict[str, Any]:
        """Return the figures of a finished training; raises `ConfigError` where there are none."""
        try:
            found = json.loads(self.result.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.result} holds no result of a training: {error}", param="runs") from error
        assert isinstance(found, dict), "a JSON object, as it was written"
        return found
