"""What prompts are planned, and what of the user's own is read."""

from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.train.prompts import KINDS, Planner, read_prompts, whole_sentences


def test_plans_are_the_same_for_the_same_number_and_cover_all_kinds() -> None:
    planner = Planner(seed=3)
    for i in range(4):
        planner.learn("article", f"Passage {i} has a first sentence. " * 10)
    plans = [planner.plan(number) for number in range(600)]
    again = Planner(seed=3)
    assert [p.temperature for p in plans] == [again.plan(number).temperature for number in range(600)]
    assert {p.kind for p in plans} == {kind.name for kind in KINDS}
    assert 0.6 < sum(p.temperature == 0.0 for p in plans) / len(plans) < 0.8
    assert all(0.7 <= p.temperature <= 1.0 for p in plans if p.temperature)
    assert not any("{passage}" in p.opener or "{topic}" in p.opener or "{name}" in p.opener for p in plans)
    assert any("Passage" in p.opener for p in plans if p.kind == "summary")


def test_without_passages_nothing_is_asked_about_them() -> None:
    kinds = {Planner(seed=1).plan(number).kind for number in range(300)}
    assert "summary" not in kinds
    assert "article" in kinds


def test_openers_that_end_a_turn_are_not_continued() -> None:
    plans = [Planner(seed=1).plan(number) for number in range(300)]
    assert all(p.open == (not p.opener or p.opener[-1].isspace()) for p in plans)
    assert {p.open for p in plans} == {True, False}


def test_own_prompts_come_first() -> None:
    planner = Planner(0, ["one", "two"])
    assert [(planner.plan(n).kind, planner.plan(n).opener) for n in range(2)] == [("given", "one"), ("given", "two")]
    assert planner.plan(2).kind != "given"


@pytest.mark.parametrize(
    ("text", "kept"), [("One. Two. Thr", "One. Two."), ("No end", "No end"), ("All of it.", "All of it.")]
)
def test_whole_sentences(text: str, kept: str) -> None:
    assert whole_sentences(text) == kept


def test_a_broken_line_of_a_prompts_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n\n{"text": "two"}\n')
    with pytest.raises(ConfigError, match="line 3"):
        read_prompts(file)
    file.write_text('{"prompt": "one"}\n\n{"prompt": "two"}\n')
    assert read_prompts(file) == ["one", "two"]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "missing")
