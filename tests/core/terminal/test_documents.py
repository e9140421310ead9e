"""JSON documents as lines and tables."""

from typing import Any

import pytest

from prolepsis.core.terminal.documents import Columns, print_document


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("COLUMNS", "160")

    def printed(document: dict[str, Any], columns: Columns | None = None) -> list[list[str]]:
        """Return the words of each line, without the frames of tables."""
        print_document(document, columns or {})
        lines = capsys.readouterr().out.splitlines()
        return [words for line in lines if (words := [word for word in line.split() if word not in "│┃"])]

    return printed


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"name": "a"}, "name a"),
        ({"enabled": False}, "enabled no"),
        ({"reason": None}, "reason -"),
        ({"rules": []}, "rules none"),
        ({"tenants": []}, "tenants all"),
        ({"rules": ["a", "b"]}, "rules a, b"),
        ({"num_tokens": 1234567}, "tokens 1,234,567"),
        ({"seed": 4503599627370497}, "seed 4503599627370497"),
        ({"entry": 123456}, "entry 123456"),
        ({"match_rate": 0.98765}, "match rate 98.77%"),
        ({"gained": 0.123456}, "gained 0.1235"),
        ({"created_at": 0.0}, "created at 1970-01-01 00:00:00"),
        ({"total_device_s": 0.0125}, "total device 12.5 ms"),
        ({"device_s_per_token": 7.5e-5}, "device per token 75 µs"),
        ({"wait_s": 7200.0}, "wait 2 h"),
        ({"device_s": {"plain": 1.25, "host": 0.0}}, "device plain 1.25 s, host 0 s"),
        ({"index_bytes": 3 * 2**29}, "index 1.5 GiB"),
        ({"speedup": {"estimate": 1.5, "lower": 1.25, "upper": 1.75}}, "speedup 1.5 (1.25 to 1.75)"),
        ({"saved": {"estimate": None, "lower": None, "upper": None}}, "saved -"),
        ({"lost": {"left": 3, "too_late": 1}}, "lost left 3, too late 1"),
        ({"price": {"name": "a", "per_hour": 2.0}}, "price name a"),
    ],
)
def test_a_value_is_one_line(show: Any, document: dict[str, Any], line: str) -> None:
    assert show(document)[0] == line.split()


def test_a_list_of_objects_is_a_table_with_the_columns_that_are_declared(show: Any) -> None:
    document = {"breakers": [{"proposer": "suffix", "state": "open", "num_judged": 7, "verdict": {"outcome": "fail"}}]}
    lines = show(document, {"breakers": ("proposer", "judged drafts=num_judged", "verdict.outcome", "state")})
    assert lines[0] == ["breakers"]
    assert lines[2] == ["proposer", "judged", "drafts", "verdict", "outcome", "state"]
    assert lines[4] == ["suffix", "7", "fail", "open"]
    assert show({"breakers": [{"a": 1, "b": 2}]})[2] == ["a", "b"]


def test_a_column_below_another_is_one_of_its_own_here(show: Any) -> None:
    lines = show({"servers": [{"name": "a", "seen_s_ago": 2.0}]}, {"servers": ("name > seen=seen_s_ago",)})
    assert lines[2] == ["name", "seen"]
    assert lines[4] == ["a", "2", "s"]


def test_rows_that_do_not_fit_are_grouped_by_their_widest_column(show: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = "completions/standard/free/short"
    lines = show({"breakers": [{"class": long, "proposer": name, "state": "open"} for name in ("suffix", "copy")]})
    assert lines[0] == ["breakers,", "class", long]
    assert lines[2] == ["proposer", "state"]
    assert lines[4:6] == [["suffix", "open"], ["copy", "open"]]


def test_a_list_may_have_several_tables_and_columns_with_units(show: Any) -> None:
    document = {"memory": [{"proposer": "suffix", "index": 2**20, "num_texts": 3}]}
    lines = show(document, {"memory": ("proposer", "index=index:bytes"), "memory:texts": ("proposer", "num_texts")})
    assert ["suffix", "1", "MiB"] in lines
    assert ["memory:", "texts"] in lines
    assert ["suffix", "3"] in lines


def test_lists_inside_rows_are_tables_of_their_own_and_empty_ones_are_one_line(show: Any) -> None:
    document = {"classes": [{"name": "x", "proposers": [{"proposer": "p", "num_drafts": 2}]}], "differences": []}
    columns = {
        "classes": ("name",),
        "classes.proposers": ("name", "proposer", "num_drafts"),
        "differences": ("request_id", "position"),
    }
    lines = show(document, columns)
    assert ["x"] in lines
    assert ["x", "p", "2"] in lines
    assert ["differences", "none"] in lines
