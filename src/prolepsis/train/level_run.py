"""Levels for a head that is there: from its folder and a folder of data to the file of its levels."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prolepsis.models.levels_file import save_levels
from prolepsis.train.acceptance import Counts
from prolepsis.train.batches import Library
from prolepsis.train.head_training import given_head
from prolepsis.train.levels import LevelSettings, LevelStep, LevelTraining
from prolepsis.train.target import Target
from prolepsis.train.training import check_data


class LevelRun:
    """Iterate over `steps`, then the folder holds the levels and `counts` their held-out acceptance."""

    def __init__(self, head: Path, data: Path, target: Target, settings: LevelSettings) -> None:
        """Raises `ConfigError` where head or data are of another target, `ModelLoadError` for a damaged head."""
        check_data(data, target)
        layer = given_head(head, target)
        library = Library(data)
        self.training = LevelTraining(layer, target.ends_for(layer.weights.target_ids), library, settings)
        self.counts: Mapping[str, Counts] = {}
        self._folder = head

    def steps(self) -> Iterator[LevelStep]:
        """Train, measure and write the file."""
        yield from self.training.steps()
        self.counts = self.training.measure()
        save_levels(self._folder, self.training.levels.weights, self._report())

    def _report(self) -> dict[str, Any]:
        said = {name: v for name, v in asdict(self.training.settings).items() if name not in ("dtype", "workers")}
        return {"settings": said, "acceptance": {kind: asdict(counts) for kind, counts in self.counts.items()}}
