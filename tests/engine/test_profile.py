"""A curve is measured once, kept, and measured again where what was kept cannot be read."""

from pathlib import Path

from prolepsis.engine.profile import cost_curve
from tests.fakes import TableModel


def test_the_curve_is_kept_and_read_back(tmp_path: Path) -> None:
    model, file = TableModel(), tmp_path / "profiles" / "curve.json"
    measured = cost_curve(model, file)
    passes = model.num_passes
    assert passes > 0
    assert cost_curve(model, file).profiled == measured.profiled
    assert model.num_passes == passes


def test_fresh_measures_again(tmp_path: Path) -> None:
    model, file = TableModel(), tmp_path / "curve.json"
    cost_curve(model, file)
    passes = model.num_passes
    cost_curve(model, file, fresh=True)
    assert model.num_passes == 2 * passes


def test_a_broken_file_is_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    file.write_text("{")
    curve = cost_curve(TableModel(), file)
    assert cost_curve(TableModel(), file).profiled == curve.profiled
