"""Files broken at random load or are refused with a reason; `mutations` looks for others, for as long as it is let."""

from pathlib import Path

import pytest

from tests.engine.models.files.mutations import broken, fault_of, make_seeds

NUM_CASES = 80
FOUND = (100645, 41687, 76108, 74801, 102663)
"""Seeds that once ended in another error than a refusal.

A tokenizer whose id makes its library panic; rows that heads cannot share (two); a scale below 0; a dimension of 0.
"""


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_seeds(tmp_path_factory.mktemp("seeds"))


def test_whole_files_load(seeds: list[Path]) -> None:
    for path in seeds:
        named = sorted(path.glob("*.gguf"))
        assert fault_of(named[0] if named else path, is_whole=True) is None


@pytest.mark.filterwarnings("default")  # libraries warn of what is broken
def test_broken_files_are_refused_or_load(seeds: list[Path], tmp_path: Path) -> None:
    for seed in dict.fromkeys([*FOUND, *range(NUM_CASES)]):
        fault = fault_of(broken(seeds, seed, tmp_path / str(seed)))
        assert fault is None, f"seed {seed}: {fault}"
