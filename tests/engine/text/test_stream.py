"""Text as it streams equals text decoded at once, and stop strings cut at the same place however tokens are grouped."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.text.stream import StopStrings, TextStream

TEXTS = st.text(alphabet="ab \n世é🙂STOP", max_size=40)


class Bytes:
    """Token i is byte i; counts how many tokens it was asked to decode."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        self.decoded += len(token_ids)
        return bytes(t for t in token_ids if t < 256).decode("utf-8", "replace")


def stream(stop: Sequence[str], blocks: Sequence[Sequence[int]]) -> tuple[str, TextStream]:
    text = TextStream(Bytes(), StopStrings(stop))
    shown = "".join(text.push(block) for block in blocks)
    return shown + text.finish(), text


@given(TEXTS, st.integers(1, 7))
def test_stream_equals_decoding_at_once(text: str, size: int) -> None:
    tokens = list(text.encode())
    assert stream((), [tokens[i : i + size] for i in range(0, len(tokens), size)])[0] == text


@given(
    TEXTS, st.lists(st.sampled_from(["STOP", "OP", "a", "世", "TO b", "🙂", "bb"]), min_size=1, max_size=3), st.data()
)
def test_stop_strings_cut_alike_however_tokens_are_grouped(text: str, stop: list[str], data: st.DataObject) -> None:
    tokens = list(text.encode())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    blocks = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    shown, state = stream(stop, blocks)
    ends = [next((e for e in range(len(text) + 1) if text[:e].endswith(s)), None) for s in stop]
    end = min((e for e in ends if e is not None), default=None)
    if end is None:
        assert (shown, state.matched) == (text, None)
        return
    longest = max((s for s in stop if text[:end].endswith(s)), key=len)
    assert (shown, state.matched) == (text[: end - len(longest)], longest)
    assert state.num_tokens == len(text[:end].encode())


def test_possible_start_of_a_stop_string_is_held_back() -> None:
    text = TextStream(Bytes(), StopStrings(["STOP"]))
    assert text.push(b"xST") == "x"
    assert text.push(b"A") == "STA"
    assert text.push(b"STO") == ""
    assert text.finish() == "STO"


def test_characters_come_whole() -> None:
    text = TextStream(Bytes())
    assert [text.push([byte]) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]


@pytest.mark.parametrize("junk", [[0xFF], [0xC3], [300]], ids=["invalid", "partial", "no text"])
def test_cost_is_linear_for_any_text(junk: list[int]) -> None:
    tokenizer = Bytes()
    text = TextStream(tokenizer)
    for _ in range(2000):
        text.push(junk)
    text.finish()
    assert tokenizer.decoded < 2000 * 80


def test_partial_character_after_junk_is_still_whole() -> None:
    text = TextStream(Bytes())
    shown = text.push([0xFF] * 9) + text.push("🙂".encode()) + text.finish()
    assert shown == "\ufffd" * 9 + "🙂"


def test_stop_strings_before_min_tokens_are_text() -> None:
    text = TextStream(Bytes(), StopStrings(["ab"]), min_tokens=4)
    assert text.push(b"abxab") == "abx"
    assert (text.matched, text.num_tokens) == ("ab", 5)


def test_a_stop_string_that_was_text_before_min_tokens_stays_text() -> None:
    text = TextStream(Bytes(), StopStrings(["ab", "abcd"]), min_tokens=3)
    assert text.push(b"abcx") == "abcx"
    assert text.matched is None


def test_earlier_match_in_one_token_wins() -> None:
    class Words:
        def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
            return "".join(["one two three", "!"][t] for t in token_ids)

    text = TextStream(Words(), StopStrings(["three", "two"]))
    assert text.push([0, 1]) == "one "
    assert (text.matched, text.num_tokens) == ("two", 1)


class Marked(Bytes):
    """Tokens from 256 on are control tokens."""

    names = ("<end>", "<user>")

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        names = [self.names[token - 256] for token in token_ids if token >= 256]
        return super().decode(token_ids) + ("" if skip_special_tokens else "".join(names))


@pytest.mark.parametrize(
    ("stop", "tokens", "shown", "num_tokens"),
    [
        ("<end>", [*b"ab", 256, *b"cd"], "ab", 3),
        ("<user>b", [*b"a", 257, *b"a", 257, *b"bc"], "aa", 5),
        ("x<end>y", [*b"axx", 256, *b"yb"], "ax", 5),
        ("<end>y", [*b"a<end>", *b"yb"], "a", 7),
    ],
)
def test_a_control_token_is_part_of_the_stop_strings_that_name_it(
    stop: str, tokens: list[int], shown: str, num_tokens: int
) -> None:
    for size in (1, 2, len(tokens)):
        text = TextStream(Marked(), StopStrings([stop]))
        assert "".join(text.push(tokens[i : i + size]) for i in range(0, len(tokens), size)) == shown
        assert (text.matched, text.num_tokens) == (stop, num_tokens)


def test_a_control_token_that_only_begins_a_stop_string_is_not_shown() -> None:
    text = TextStream(Marked(), StopStrings(["x<end>y"]))
    assert text.push([*b"ax", 256]) == "a"
    assert text.push(b"z") == "xz"
    assert text.push([*b"x", 256]) + text.finish() == "x"
    assert (text.matched, text.num_characters) == (None, len("axzx"))


def test_a_control_token_that_no_stop_string_names_divides_none() -> None:
    text = TextStream(Marked(), StopStrings(["STOP"]))
    assert text.push([*b"aST", 256, *b"OP"]) == "a"
    assert text.matched == "STOP"
