"""`prolepsis train`: counts as people write them, and what is refused before anything is loaded."""

import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from typer.testing import CliRunner

from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.terminal.flags import options_of, with_options
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.models.heads.format import read_config
from prolepsis.engine.models.targets.native import WIDTH
from prolepsis.server.cli.main import app
from prolepsis.training.commands import WITH_RESUME, count, resumable
from prolepsis.training.estimate import CEILING, choose, expected_of, fit, gain
from prolepsis.training.settings import (
    WIDTH_STEP,
    HeadRecipe,
    HeadSize,
    LevelSettings,
    Rates,
    StatedCost,
    StatedStepCost,
)
from prolepsis.training.text import read_texts
from tests.training.targets import save_target


@pytest.mark.parametrize(
    ("text", "number"), [("500k", 500_000), ("10M", 10**7), ("1.5m", 1_500_000), ("7B", 7 * 10**9), ("42", 42)]
)
def test_counts(text: str, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize("text", ["", "ten", "10 MB", "-5", "1e6"])
def test_invalid_counts(text: str) -> None:
    with pytest.raises(InvalidParameter, match="not a count"):
        count(text)


def test_the_command_lists_its_options() -> None:
    shown = CliRunner().invoke(app, ["train", "head", "--help"])
    assert shown.exit_code == 0
    for flag in ("--target", "--tokens", "--out", "--prompts", "--text", "--resume", "--init", "--levels"):
        assert flag in shown.output


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("")
    shown = CliRunner().invoke(app, ["train", "head", "--target", str(tmp_path), "--out", str(tmp_path)])
    assert shown.exit_code == 2
    assert "--resume" in shown.stderr


def test_a_head_from_recorded_text_and_the_text_again(tmp_path: Path) -> None:
    folder = save_target(tmp_path / "target")
    random = torch.Generator().manual_seed(1)
    lines = [torch.randint(3, 259, (24,), generator=random).tolist() for _ in range(60)]
    file, out = tmp_path / "text.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps({"prompt": ids[:8], "answer": ids[8:]}) + "\n" for ids in lines))
    arguments = ["train", "head", "--target", str(folder), "--out", str(out), "--text", str(file), "--levels", "0"]
    small = ["--heads", "6", "--kv-heads", "2", "--intermediate", "32", "--batch", "100", "--epochs", "1"]
    threads = torch.get_num_threads()
    shown = CliRunner().invoke(app, [*arguments, *small, "--draft-vocab", "96", "--threads", "1"])
    torch.set_num_threads(threads)
    assert shown.exit_code == 0, shown.output
    assert "draft head (EAGLE-3)" in shown.output
    assert "held-out acceptance" in shown.output
    assert read_config(out / "head").shape.heads == 6
    again = tmp_path / "again.jsonl.xz"
    shown = CliRunner().invoke(app, ["train", "text", str(again), "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert {tuple(text.tokens) for text in read_texts(again, 259, ())} == {tuple(ids) for ids in lines}


def test_a_width_that_no_forward_takes_is_status_2(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["train", "head", "--out", str(tmp_path), "--intermediate", "100"])
    assert shown.exit_code == 2


def test_an_interrupted_training_says_how_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), resumable(WITH_RESUME):
        raise KeyboardInterrupt
    assert "the same command with --resume continues" in capsys.readouterr().err


RECIPES = (HeadRecipe(), LevelSettings(), StatedCost())


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
def test_the_defaults_give_the_same_recipe(recipe: object) -> None:
    values = {name: found.default for name, found in options_of(recipe).items()}
    assert values
    assert with_options(recipe, values) == recipe


def test_an_option_reaches_the_field_of_a_nested_dataclass() -> None:
    values = {name: found.default for name, found in options_of(HeadRecipe()).items()}
    changed = with_options(HeadRecipe(), {**values, "adamw": 0.5, "intermediate": 64})
    assert changed.training.rates == Rates(adamw=0.5)
    assert changed.size == HeadSize(intermediate=64)
    assert changed.training.prompt_epochs == HeadRecipe().training.prompt_epochs


def test_every_recipe_has_its_own_defaults() -> None:
    head, levels = options_of(HeadRecipe()), options_of(LevelSettings())
    assert (head["anchors_per_step"].default, levels["max_anchors"].default) == (768, 400_000)
    kinds = [get_args(head[name].annotation) for name in ("anchors_per_step", "adamw")]
    assert [(kind, option.default) for kind, option in kinds] == [(int, "--batch"), (float, "--rate")]


def test_widths_are_those_of_the_native_forward() -> None:
    assert WIDTH_STEP == WIDTH
    with pytest.raises(ConfigError, match="width is 40; allowed: multiples of 32"):
        LevelSettings(width=40)
    with pytest.raises(ConfigError, match="intermediate is 100; allowed: multiples of 32"):
        HeadSize(intermediate=100)


COST = StatedStepCost(plain_ms=17.0, token_ms=0.3, draft_ms=0.6, draft_ms_per_1k=0.1)


def test_a_known_power_law_is_found_again() -> None:
    truth = [0.7 - 0.4 * size**-0.4 for size in (1.0, 2.0, 4.0, 8.0, 64.0)]
    curve = fit([1e5, 2e5, 4e5, 8e5], truth[:4])
    assert curve.at(64e5) == pytest.approx(truth[4], abs=0.02)


def test_predictions_stay_below_the_ceiling_and_do_not_fall() -> None:
    curve = fit([1e5, 2e5, 4e5], [0.3, 0.45, 0.6])
    assert 0.6 - 0.02 <= curve.at(4e5) <= curve.at(1e7) <= curve.at(1e12) <= CEILING
    flat = fit([1e5, 2e5, 4e5], [0.4, 0.39, 0.41])
    assert flat.at(1e9) < 0.5


def test_one_run_predicts_nothing() -> None:
    with pytest.raises(ValueError, match="two or more"):
        fit([1e5], [0.3])


def test_expected_tokens_and_speedup_by_hand() -> None:
    assert expected_of([0.5, 0.4], 2) == pytest.approx(1 + 0.5 + 0.2)
    assert expected_of([0.5, 0.4], 3) == pytest.approx(1 + 0.5 + 0.2 + 0.08)
    assert gain([0.5], 1, COST, COST.drafting(4000)) == pytest.approx(1.5 * 17.0 / (17.0 + 0.3 + 0.6 + 0.4))


def test_better_rates_pay_for_deeper_drafts() -> None:
    coverage = {8000: 0.98}
    depths = [choose([rate] * 4, 8000, coverage, COST).depth for rate in (0.1, 0.5, 0.8)]
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]


def test_a_larger_vocabulary_without_more_coverage_does_not_pay() -> None:
    assert choose([0.6] * 4, 8000, {4000: 0.98, 8000: 0.98, 16000: 0.98}, COST).vocab == 4000
    assert choose([0.6] * 4, 8000, {4000: 0.40, 8000: 0.98}, COST).vocab == 8000


def test_costs_that_are_not_stated_are_those_of_this_machine() -> None:
    """The defaults were another machine's, and the best depth followed from them."""
    curve = CostCurve((1, 8, 64), (64, 512), ((4.0, 5.0), (7.5, 8.5), (35.5, 36.5)))
    assert StatedCost().on(curve) == StatedStepCost(4.0, 0.5, 0.6, 0.07)
    assert StatedCost(plain_ms=20.0).on(curve) == StatedStepCost(20.0, 0.5, 0.6, 0.07)
    assert StatedCost(plain_ms=20.0, token_ms=0.1).on(None) == StatedStepCost(20.0, 0.1, 0.6, 0.07)
