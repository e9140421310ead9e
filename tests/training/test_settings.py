"""Recipes as options: every option is found, keeps the type of its field, and reaches it again."""

from typing import get_args

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.flags import options_of, with_options
from prolepsis.engine.models.targets.native import WIDTH
from prolepsis.training.settings import (
    WIDTH_STEP,
    HeadRecipe,
    HeadSize,
    LevelSettings,
    Rates,
    StatedCost,
)

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
