"""Budgets as people write them, and what is said of a budget that is too small, or larger than the machine."""

import pytest

from prolepsis.core.errors import ConfigError, MemoryPlanError
from prolepsis.kv.memory import MemoryUse, PageShape, Room, format_bytes, parse_bytes, plan_pages


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
    assert plan_pages("1MiB", shape(1000, 64), ENDLESS) == 1048


def test_too_small_a_budget_says_how_much_is_needed() -> None:
    with pytest.raises(MemoryPlanError, match=r"holds 320 tokens; .* 2048 needs 64KiB.* lower max_model_len .* 320"):
        plan_pages("10KiB", shape(1024, 2048), ENDLESS)


def test_the_amount_asked_for_is_enough() -> None:
    for pages in (1, 3, 1025, 77777):
        needed = format_bytes(pages * 1011)
        assert plan_pages(needed, shape(1011, 32 * pages), ENDLESS) >= pages


def test_a_budget_beyond_the_machine_names_the_sum_its_parts_and_what_fits() -> None:
    with pytest.raises(MemoryPlanError) as refused:
        plan_pages("400GiB", SHAPE, MACHINE)
    assert str(refused.value) == (
        "404GiB of memory are needed, and this machine has 20GiB: 400GiB KV cache (kv_memory), 3GiB weights of m, "
        "1GiB workspace of a pass (max_step_tokens); lower kv_memory to at most 16GiB"
    )
    assert plan_pages("16GiB", SHAPE, MACHINE) == 16384


def test_a_context_beyond_the_machine_is_named_with_the_longest_that_fits() -> None:
    tight = Room("the cgroup of this process", (4 << 30) + (100 << 20), (WEIGHTS, WORKSPACE))
    with pytest.raises(MemoryPlanError, match=r"the cgroup .* lower max_model_len to at most 3200, and kv_memory"):
        plan_pages("1GiB", SHAPE, tight)


def test_no_room_for_a_page_names_what_else_may_be_lowered() -> None:
    with pytest.raises(MemoryPlanError, match="lower kv_memory or max_step_tokens, or choose a smaller model"):
        plan_pages("1GiB", SHAPE, Room("this machine", 4 << 30, (WEIGHTS, WORKSPACE)))


def test_auto_takes_half_the_room_left() -> None:
    assert plan_pages("auto", SHAPE, MACHINE) == 8192


def test_auto_takes_no_more_than_the_requests_can_use() -> None:
    assert plan_pages("auto", SHAPE, ENDLESS) == 256 * 64


def test_auto_holds_one_sequence_even_beyond_half_the_room() -> None:
    tight = Room("this machine", (4 << 30) + (400 << 20), (WEIGHTS, WORKSPACE))
    assert plan_pages("auto", SHAPE, tight) == 256
    with pytest.raises(MemoryPlanError, match="max_model_len"):
        plan_pages("auto", SHAPE, Room("this machine", (4 << 30) + (200 << 20), (WEIGHTS, WORKSPACE)))
