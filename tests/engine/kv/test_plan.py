"""Budgets as people write them, and what is said of a budget that is too small, or larger than the machine."""

from dataclasses import replace

import pytest

from prolepsis.core.errors import ConfigError, MemoryPlanError
from prolepsis.engine.kv.memory import (
    MemoryUse,
    PagePlan,
    PageShape,
    Room,
    format_bytes,
    parse_bytes,
    plan_pages,
    share_for,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [("768MiB", 768 << 20), ("2GiB", 2 << 30), ("1.5 gib", 3 << 29), ("64MB", 64_000_000), ("4096", 4096), ("1B", 1)],
)
def test_amounts(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "12XB", "-1MiB", "0MiB", "1,5GiB", "ten"])
def test_refused_amounts_name_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_memory is .*allowed: a positive amount such as 768MiB"):
        parse_bytes(text)


ENDLESS = Room("this machine", 1 << 60)
WEIGHTS = MemoryUse("weights of m", 3 << 30)
WORKSPACE = MemoryUse("workspace of a pass", 1 << 30, "max_step_tokens")
MACHINE = Room("this machine", 20 << 30, (WEIGHTS, WORKSPACE))
SHAPE = PageShape(page_bytes=1 << 20, page_size=32, max_model_len=8192, max_requests=64)


def shape(page_bytes: int, max_model_len: int) -> PageShape:
    return PageShape(page_bytes, 32, max_model_len, max_requests=4)


def test_pages_of_a_budget() -> None:
    assert plan_pages("1MiB", shape(1000, 64), ENDLESS) == PagePlan(1048, 64)


def test_too_small_a_budget_says_how_much_is_needed() -> None:
    with pytest.raises(MemoryPlanError, match=r"holds 320 tokens; .* 2048 needs 64KiB.* lower max_model_len .* 320"):
        plan_pages("10KiB", shape(1024, 2048), ENDLESS)


def test_the_amount_asked_for_is_enough() -> None:
    for pages in (1, 3, 1025, 77777):
        needed = format_bytes(pages * 1011)
        assert plan_pages(needed, shape(1011, 32 * pages), ENDLESS).num_pages >= pages


def test_a_budget_beyond_the_machine_names_the_sum_its_parts_and_what_fits() -> None:
    with pytest.raises(MemoryPlanError) as refused:
        plan_pages("400GiB", SHAPE, MACHINE)
    assert str(refused.value) == (
        "404GiB of memory are needed, and this machine has 20GiB: 400GiB KV cache (kv_memory), 3GiB weights of m, "
        "1GiB workspace of a pass (max_step_tokens); lower kv_memory to at most 16GiB"
    )
    assert plan_pages("16GiB", SHAPE, MACHINE).num_pages == 16384


def test_a_context_beyond_the_machine_is_named_with_the_longest_that_fits() -> None:
    tight = Room("the cgroup of this process", (4 << 30) + (100 << 20), (WEIGHTS, WORKSPACE))
    with pytest.raises(MemoryPlanError, match=r"the cgroup .* lower max_model_len to at most 3200, and kv_memory"):
        plan_pages("1GiB", SHAPE, tight)


def test_no_room_for_a_page_names_what_else_may_be_lowered() -> None:
    with pytest.raises(MemoryPlanError, match="lower kv_memory or max_step_tokens, or choose a smaller model"):
        plan_pages("1GiB", SHAPE, Room("this machine", 4 << 30, (WEIGHTS, WORKSPACE)))


def test_auto_takes_a_quarter_of_the_room_left() -> None:
    assert plan_pages("auto", SHAPE, MACHINE) == PagePlan(4096, 8192)
    assert plan_pages("40%", SHAPE, MACHINE).num_pages == 4096 * 40 // 25


def test_a_share_is_no_more_than_the_requests_can_use() -> None:
    assert plan_pages("auto", SHAPE, ENDLESS).num_pages == 256 * 64
    assert plan_pages("90%", SHAPE, ENDLESS).num_pages == 256 * 64


def test_a_stated_context_gets_more_than_the_share() -> None:
    tight = Room("this machine", (4 << 30) + (400 << 20), (WEIGHTS, WORKSPACE))
    assert plan_pages("auto", SHAPE, tight).num_pages == 256
    with pytest.raises(MemoryPlanError, match="max_model_len"):
        plan_pages("auto", SHAPE, Room("this machine", (4 << 30) + (200 << 20), (WEIGHTS, WORKSPACE)))


CUTTABLE = replace(SHAPE, is_cuttable=True)


def with_left(mebibytes: int) -> Room:
    return Room("this machine", (4 << 30) + (mebibytes << 20), (WEIGHTS, WORKSPACE))


@pytest.mark.parametrize(
    ("budget", "left", "plan"),
    [
        ("auto", 2000, PagePlan(500, 8192)),  # a quarter holds the context
        ("auto", 600, PagePlan(256, 8192)),  # half does
        ("auto", 400, PagePlan(200, 6144)),  # 200 pages hold 6400 tokens
        ("40%", 400, PagePlan(160, 5120)),
        ("100MiB", 400, PagePlan(100, 3072)),
        ("auto", 40, PagePlan(20, 640)),
    ],
)
def test_a_context_is_cut_to_what_fits(budget: str, left: int, plan: PagePlan) -> None:
    assert plan_pages(budget, CUTTABLE, with_left(left)) == plan


def test_a_context_is_not_cut_to_next_to_nothing() -> None:
    with pytest.raises(MemoryPlanError, match="lower max_model_len to at most 160, and kv_memory"):
        plan_pages("auto", CUTTABLE, with_left(5))
    with pytest.raises(MemoryPlanError, match="lower max_step_tokens or kv_memory, or choose a smaller model"):
        plan_pages("auto", CUTTABLE, with_left(-5))


def test_nearly_the_same_room_gives_the_same_context() -> None:
    assert {plan_pages("auto", CUTTABLE, with_left(left)).max_model_len for left in range(400, 440, 4)} == {6144, 6656}


def test_engines_of_one_machine_share_half_of_what_is_left() -> None:
    assert share_for("auto", 1) == "auto"
    assert share_for("auto", 4) == "12.5%"
    assert share_for("40%", 4) == "10%"
    assert share_for("2GiB", 4) == "2GiB"
    assert share_for("some", 4) == "some"


@pytest.mark.parametrize("text", ["0%", "101%", "-5%", "%", "some"])
def test_refused_budgets_name_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_memory is .*such as 768MiB or 2GiB, a share such as 40%, or auto"):
        plan_pages(text, SHAPE, MACHINE)
