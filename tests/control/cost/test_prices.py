"""Price books: what they say, what is wrong with them, and how a file that is edited takes effect."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from prolepsis.control.cost.history import store_prices, stored_prices
from prolepsis.control.cost.prices import InvalidPrices, PriceBook, PriceFile, parse_prices, read_prices
from prolepsis.control.store.database import Database
from prolepsis.core.errors import ConfigError
from tests.waiting import at_once

BOOK = """
version: 2026-11
currency: EUR
prices:
  - name: reserved
    region: eu-west-1
    term: reserved
    per_device_hour: 1.8
    overheads: {power: 0.12, hosting: 0.08}
    memory_gib: 80
  - {name: spare, per_device_hour: 3.6}
"""


def book(text: str = BOOK) -> PriceBook:
    return parse_prices(text, "prices.yaml")


def test_an_hour_costs_what_all_of_it_costs() -> None:
    reserved, spare = book().prices
    assert reserved.per_hour == pytest.approx(2.0)
    assert spare.per_second == pytest.approx(0.001)
    assert reserved.memory_per_hour(8 * 2**30) == pytest.approx(0.2)
    assert spare.memory_per_hour(8 * 2**30) is None


def test_the_version_is_of_the_content() -> None:
    assert book().full_version == f"2026-11@{book().digest}"
    reordered = book(BOOK.replace("2026-11", "other").replace("name: spare,", "name: spare, description: old,"))
    assert reordered.digest == book().digest
    assert book(BOOK.replace("0.12", "0.13")).digest != book().digest


def test_tags_are_listed_and_may_have_prices() -> None:
    tagged = book(f"{BOOK}tags: [team:a, search]\nrevenue: {{search: {{prompt: 0.5, output: 4}}}}\n")
    assert tagged.digest != book(f"{BOOK}tags: [team:a, search]\n").digest != book().digest == book().digest
    assert tagged.listed(("search", "mine", "team:a")) == ("team:a", "search")
    assert (tagged.listed(("mine",)), tagged.listed(()), book().listed(("mine",))) == (("other",), ("none",), ())
    assert tagged.revenue["search"].of(2_000_000, 500_000) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"prices\.yaml: is empty; allowed: version, currency, prices"),
        ("currency: EUR\nprices: []", "prices.*is \\[\\]; allowed: one or more"),
        ("prices: [{name: a, per_device_hour: 1}]", "currency is missing"),
        (
            "currency: euro\nprices: [{name: a, per_device_hour: 1}]",
            r"yaml:1: currency.*'euro'; allowed: three capital",
        ),
        (
            "currency: EUR\nprices: [{name: a, per_device_hour: -1}]",
            r"yaml:2: .*per_device_hour is -1; allowed: greater",
        ),
        ("currency: EUR\nprices: [{name: a, per_device_hour: .inf}]", "per_device_hour"),
        ("currency: EUR\nprices: [{name: a, price_per_hour: 1, per_device_hour: 1}]", "did you mean 'per_device_hour'"),
        ("currency: EUR\nprices: [{name: a, per_device_hour: 1, term: spot}]", "allowed: on_demand, reserved"),
        ("currency: EUR\nprices: [{name: a, per_device_hour: 1, overheads: {power: -2}}]", "power is -2"),
        ("currency: EUR\nprices: [{name: a, per_device_hour: 1}, {name: a, per_device_hour: 2}]", "twice: a"),
        (
            "currency: EUR\nprices: [{name: a, per_device_hour: 1}]\ntags: [none]",
            "names none; allowed: all but none and",
        ),
        (
            "currency: EUR\nprices: [{name: a, per_device_hour: 1}]\ntags: [a]\nrevenue: {b: {output: 1}}",
            "revenue names b; allowed: a",
        ),
        (
            "currency: EUR\nprices: [{name: a, per_device_hour: 1}]\ntags: [a]\nrevenue: {a: {output: -1}}",
            "output is -1",
        ),
        ("currency: [", "is not YAML"),
    ],
)
def test_errors_say_where_what_was_given_and_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(InvalidPrices, match=said):
        book(text)


def test_which_price_counts_has_to_be_clear() -> None:
    assert book().price("spare").name == "spare"
    assert book("currency: EUR\nprices: [{name: a, per_device_hour: 1}]").price(None).name == "a"
    with pytest.raises(ConfigError, match=r"has several; allowed: reserved, spare"):
        book().price(None)
    with pytest.raises(ConfigError, match=r"price is 'spot'; in the book: reserved, spare"):
        book().price("spot")


def test_an_edit_counts_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    with pytest.raises(ConfigError, match=r"prices .*prices\.yaml cannot be read"):
        read_prices(path)
    path.write_text(BOOK)
    file = PriceFile(path, "spare")
    path.write_text(BOOK.replace("spare", "gone"))
    seen = file.reload()
    assert seen.refused is not None
    assert "price is 'spare'" in str(seen.refused)
    assert file.price.per_device_hour == 3.6
    path.write_text(BOOK.replace("3.6", "7.2"))
    assert file.reload().changed
    assert file.price.per_device_hour == 7.2


def test_another_currency_needs_a_restart(tmp_path: Path) -> None:
    """Amounts since the start are sums: euros and dollars would be added up."""
    path = tmp_path / "prices.yaml"
    path.write_text(BOOK)
    prices = PriceFile(path, "spare")
    path.write_text(BOOK.replace("EUR", "USD"))
    refused = prices.reload().refused
    assert "currency is 'USD'; allowed: 'EUR'" in str(refused)
    assert prices.value.currency == "EUR"
    path.write_text(BOOK.replace("3.6", "7.2"))
    assert prices.reload().changed


def test_a_book_is_kept_when_another_was_in_use_before(database: Database) -> None:
    with database.write() as connection:
        first = store_prices(connection, "a@1", '{"currency": "EUR"}')
        assert store_prices(connection, "a@1", '{"currency": "EUR"}') == first
        store_prices(connection, "b@2", "{}")
        again = store_prices(connection, "a@1", '{"currency": "EUR"}')
    assert (first.number, again.number) == (1, 3)
    with database.read() as connection:
        assert [book.version for book in stored_prices(connection, 10)] == ["a@1", "b@2", "a@1"]
        assert stored_prices(connection, 1) == [again]


def test_replicas_that_start_at_once_keep_their_book_once(connect: Callable[[], Database]) -> None:
    numbers: list[int] = []

    def keep(database: Database) -> None:
        with database.write() as connection:
            numbers.append(store_prices(connection, "a@1", "{}").number)

    at_once(*(partial(keep, connect()) for _ in range(4)))
    assert numbers == [1, 1, 1, 1]
