"""A curve is measured once, kept, and measured again where what was kept cannot be read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prolepsis.engine.drafting.cost import PROFILE_TOKENS, CostCurve
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.profile import cost_curve, long_passes, measure
from tests.fakes import TableModel


class TokensSeen(TableModel):
    """Keeps the tokens of each pass, and computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, vocab_size=1000, max_positions=1000)
        self.seen: list[list[int]] = []

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        self.seen.append(batch.token_ids.tolist())
        return torch.zeros(0)


def kept(file: Path, ms: float) -> None:
    """Keep a curve on which each pass takes `ms`."""
    lines = [[ms, ms]] * len(PROFILE_TOKENS)
    file.write_text(json.dumps({"tokens": PROFILE_TOKENS, "contexts": [64, 128], "ms": lines}))


def test_the_curve_is_kept_and_read_back(tmp_path: Path) -> None:
    model, file = TableModel(), tmp_path / "profiles" / "curve.json"
    measured = cost_curve(model, file)
    assert model.num_passes > 0
    assert json.loads(file.read_text())["ms"] == [list(line) for line in measured.profiled]


def test_a_kept_curve_is_not_measured_again(tmp_path: Path) -> None:
    model, file = TableModel(), tmp_path / "curve.json"
    kept(file, 1e-6)
    assert cost_curve(model, file).profiled[0][0] == 1e-6
    assert model.num_passes <= 8, "only looked at"


def test_one_from_a_busy_machine_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    kept(file, 1e6)
    assert cost_curve(TableModel(), file).profiled[0][0] < 1e5
    assert json.loads(file.read_text())["ms"][0][0] < 1e5


@pytest.mark.parametrize("number", [0, len(PROFILE_TOKENS) - 1])
def test_so_is_one_that_was_disturbed_at_one_end(tmp_path: Path, number: int) -> None:
    file = tmp_path / "curve.json"
    kept(file, 1e-6)
    curve = json.loads(file.read_text())
    curve["ms"][number] = [1e6, 1e6]
    file.write_text(json.dumps(curve))
    assert cost_curve(TableModel(), file).profiled[number][0] < 1e5


def test_a_pass_is_measured_with_different_tokens() -> None:
    """All tokens of a measured pass were one: in a mixture of experts they took the experts of a single token."""
    model = TokensSeen()
    measure(model, repeats=1, counts=(1, 8, 64))
    assert {len(set(tokens)) for tokens in model.seen} == {1, 8, 64}
    assert {len(tokens) for tokens in model.seen} == {1, 8, 64}
    assert all(0 <= token < model.info.vocab_size for tokens in model.seen for token in tokens)


@pytest.mark.parametrize(
    ("max_positions", "ms", "lengths"),
    [(1000, 1.0, {256, 512}), (400, 1.0, {256}), (99, 1.0, set()), (1000, 2e3, {256})],
)
def test_long_passes_are_measured_where_they_fit(max_positions: int, ms: float, lengths: set[int]) -> None:
    model = TokensSeen()
    model.info = replace(model.info, max_positions=max_positions)
    curve = CostCurve((1, 64), (64, 512), ((ms / 2, ms), (ms, ms)))
    assert set(long_passes(model, curve)) == lengths
    assert {len(tokens) for tokens in model.seen} == lengths


def test_fresh_measures_again(tmp_path: Path) -> None:
    model, file = TableModel(), tmp_path / "curve.json"
    kept(file, 1e-6)
    assert cost_curve(model, file, fresh=True).profiled[0][0] > 1e-6


def test_a_broken_file_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    file.write_text("{")
    curve = cost_curve(TableModel(), file)
    assert json.loads(file.read_text())["ms"] == [list(line) for line in curve.profiled]
