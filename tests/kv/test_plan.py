"""Budgets as people write them, and what a budget that is too small says."""

import pytest

from prolepsis.core.errors import ConfigError, MemoryPlanError
from prolepsis.kv.memory import format_bytes, parse_bytes, plan_pages


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


def test_pages_of_a_budget() -> None:
    assert plan_pages("1MiB", page_bytes=1000, page_size=32, max_model_len=64) == 1048


def test_too_small_a_budget_says_how_much_is_needed() -> None:
    with pytest.raises(MemoryPlanError, match=r"holds 320 tokens; .* 2048 needs 64KiB.* lower max_model_len .* 320"):
        plan_pages("10KiB", page_bytes=1024, page_size=32, max_model_len=2048)


def test_the_amount_asked_for_is_enough() -> None:
    for pages in (1, 3, 1025, 77777):
        needed = format_bytes(pages * 1011)
        assert plan_pages(needed, page_bytes=1011, page_size=32, max_model_len=32 * pages) >= pages
