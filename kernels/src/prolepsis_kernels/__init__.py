"""The sources of Prolepsis's kernels."""

from pathlib import Path

SOURCES = Path(__file__).parent / "sources"
