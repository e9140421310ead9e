"""The project stays within `budgets.toml`, and its numbers follow what became smaller."""

import re
import tomllib
from collections.abc import Callable, Mapping

import pytest

from tests.contract.surface import GOLDEN
from tests.paths import ROOT

BUDGETS = tomllib.loads((ROOT / "budgets.toml").read_text())
SLACK = 0.02
"""A number that lies further than this above what is there is to be lowered."""


def lines_below(folder: str, suffix: str) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in (ROOT / folder).rglob(f"*{suffix}"))


def golden(name: str) -> list[str]:
    return (GOLDEN / f"{name}.txt").read_text().splitlines()


COUNTS: Mapping[str, Callable[[], int]] = {
    "settings": lambda: sum(not line.startswith(" ") for line in golden("settings")),
    "terms_of_settings": lambda: sum(line.startswith(" ") for line in golden("settings")),
    "commands": lambda: sum(": " not in line for line in golden("commands")),
    "admin_paths": lambda: len(set(re.findall(r"^[A-Z]+ (/admin/\S*)", "\n".join(golden("openapi")), re.MULTILINE))),
    "metrics": lambda: len(golden("metrics")),
    "tables": lambda: len({line.partition(".")[0] for line in golden("store")}),
}


@pytest.mark.parametrize("folder", BUDGETS["lines"])
def test_code_stays_within_its_lines(folder: str) -> None:
    check(lines_below(folder, ".py"), BUDGETS["lines"][folder])


@pytest.mark.parametrize("folder", BUDGETS["pages"])
def test_pages_stay_within_their_lines(folder: str) -> None:
    check(lines_below(folder, ".md"), BUDGETS["pages"][folder])


@pytest.mark.parametrize("name", COUNTS)
def test_what_a_user_must_hold_stays_within_its_count(name: str) -> None:
    check(COUNTS[name](), BUDGETS["counts"][name])


def test_every_room_has_a_budget() -> None:
    rooms = {f"src/prolepsis/{folder.parent.name}" for folder in (ROOT / "src").glob("prolepsis/*/__init__.py")}
    assert rooms == {folder for folder in BUDGETS["lines"] if "/" in folder}
    assert COUNTS.keys() == BUDGETS["counts"].keys()


def check(there: int, most: int) -> None:
    assert there <= most, (
        f"{there} of at most {most}: take as much out, or raise budgets.toml with the reason beside it"
    )
    assert most <= there * (1 + SLACK) + 1, f"{there} of at most {most}: lower budgets.toml to what is there"
