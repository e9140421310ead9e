"""Prompts and arms as the command line names them; loads as they are given."""

from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.lab.measure.arrivals import TrafficLoad, load_of
from prolepsis.lab.measure.contenders import parse_arms
from prolepsis.lab.measure.prompts import Prompt, encode_prompts, load_prompts
from tests.lab.measure.fakes import PROPOSERS, ByteTokenizer, two_prompts, write_prompts


def test_prompts_are_read_and_filtered(tmp_path: Path) -> None:
    file = write_prompts(tmp_path / "prompts.jsonl")
    assert load_prompts(file) == two_prompts()
    assert load_prompts(file, ["chat"]) == (Prompt("p2", "chat", "abcdef"),)


def test_a_prompt_set_is_shipped() -> None:
    assert len(load_prompts(None)) >= 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no prompts"),
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is not a JSON object"),
        ('{"id": "a", "category": "c"}', "'prompt'"),
        ('{"id": "a", "category": "c", "prompt": 3}', "'prompt'"),
        ('{"id": "a", "category": "all", "prompt": "p"}', "category 'all'"),
        ('{"id": "a", "category": "c", "prompt": "p"}\n\n{"id": "a", "category": "c", "prompt": "q"}', "twice"),
    ],
)
def test_a_broken_prompt_file_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load_prompts(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_invalid_utf8_and_an_unknown_category(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_prompts(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xff"}')
    with pytest.raises(ConfigError, match="UTF-8"):
        load_prompts(tmp_path / "latin.jsonl")
    with pytest.raises(ConfigError, match="it has code, chat"):
        load_prompts(write_prompts(tmp_path / "prompts.jsonl"), ["rag"])


def test_prompts_pass_through_the_chat_template() -> None:
    first = encode_prompts(two_prompts(), ByteTokenizer())[0]
    assert first.token_ids == (1, 97, 98, 99, 2)


def test_a_model_without_a_template_continues_the_prompts() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = None
    assert encode_prompts(two_prompts(), tokenizer)[0].token_ids == (3, 97, 98, 99)


def test_arms_become_plans_and_plain_is_always_first() -> None:
    arms = parse_arms("auto, suffix@8,prompt_lookup,auto", PROPOSERS)
    assert list(arms) == ["plain", "auto", "suffix@8", "prompt_lookup"]
    plans = list(arms.values())
    assert plans[0].num_speculative_tokens == 0
    assert (plans[1].proposers, plans[1].fixed_depth) == (None, None)
    assert (plans[2].proposers, plans[2].fixed_depth) == (("suffix",), 8)
    assert plans[3].proposers == ("prompt_lookup",)
    assert len({plan.version for plan in plans}) == len(plans)


def test_a_fixed_depth_above_the_ceiling_raises_the_ceiling() -> None:
    assert parse_arms("suffix@24", PROPOSERS, 16)["suffix@24"].num_speculative_tokens == 24


@pytest.mark.parametrize("name", ["sufix", "plain@4", "suffix@0", "suffix@x", "suffix@", "@3"])
def test_an_unknown_arm_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        parse_arms(name, PROPOSERS)


def test_a_load_is_a_number_at_once_or_a_rate() -> None:
    assert load_of("8") == TrafficLoad(at_once=8)
    assert load_of("0.5/s") == TrafficLoad(per_second=0.5)
    assert str(load_of("8")) == "8 at once"
    assert str(load_of("2/s")) == "2 a second"


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "0/s", "nan/s", "inf/s", "2/m", "a"])
def test_other_texts_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="requests at once"):
        load_of(text)
