"""Measured loss of quality through quantisation, by model file: `python -m benchmarks.quality --record`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from prolepsis.core.files import sha256_of

RECORD: Final = Path(__file__).with_name("quality.json")


@dataclass(frozen=True, slots=True)
class MeasuredQuality:
    """One model file under one computation, against the float32 forward on the file's values."""

    file: str
    sha256: str
    computation: str  # as in `ModelInfo.computation`
    kl: float  # mean of KL(float32 || this) over positions, in nats
    agreement: float  # share of positions whose likeliest token is float32's
    perplexity: float
    float32_perplexity: float
    positions: int
    text: str
    commit: str | None

    def describe(self) -> str:
        return (
            f"KL {self.kl:.2g} nats to float32, same likeliest token {self.agreement:.1%}, perplexity "
            f"{self.perplexity:.2f} (float32 {self.float32_perplexity:.2f}), on {self.positions} tokens of {self.text}"
        )


def measured_quality(path: Path, record: Path | None = None) -> list[MeasuredQuality]:
    """Return what was measured on exactly this model file, one value for each computation; none for other files."""
    named = [quality for quality in _read(record or RECORD) if quality.file == path.name and path.is_file()]
    digest = sha256_of(path) if named else ""
    return [quality for quality in named if quality.sha256 == digest]


def record_quality(measured: Sequence[MeasuredQuality], record: Path = RECORD) -> None:
    """Add figures to the record, in place of older ones of the same file and computation."""
    new = {(quality.sha256, quality.computation) for quality in measured}
    kept = [quality for quality in _read(record) if (quality.sha256, quality.computation) not in new]
    record.write_text(json.dumps([asdict(quality) for quality in (*kept, *measured)], indent=2) + "\n")


def _read(record: Path) -> list[MeasuredQuality]:
    return [MeasuredQuality(**row) for row in json.loads(record.read_text())]
