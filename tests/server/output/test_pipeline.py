"""Policies over an answer: what the client gets does not depend on steps, and nothing held back shows in any form."""

import threading
from collections.abc import Iterator
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry

from prolepsis.server.output.pipeline import Fault, OutputMetrics, Workers
from prolepsis.server.output.policy import (
    ALLOW,
    AnswerFacts,
    AnswerReader,
    Rewrite,
    TextDecision,
    hold_back,
    rewrite,
    stop,
)
from tests.server.output.policies import Look, Says, deliver, loaded

TEXT = "Grüße! the key is SECRET1234, and 👋 SECRETS are kept. END of it"


def redact(pending: str, ended: bool) -> TextDecision:
    """SECRET and the digits after it are not shown."""
    at = pending.find("SECRET")
    if at >= 0:
        end = at + 6
        while end < len(pending) and pending[end].isdigit():
            end += 1
        if end == len(pending) and not ended:
            return hold_back(len(pending) - at)
        return rewrite(Rewrite(at, end, "[gone]"))
    for length in range(min(5, len(pending)), 0, -1):
        if "SECRET".startswith(pending[-length:]) and not ended:
            return hold_back(length)
    return ALLOW


def shout(pending: str, ended: bool) -> TextDecision:
    return rewrite(*(Rewrite(i, i + 1, c.upper()) for i, c in enumerate(pending) if c == "g"))


def stop_at(word: str) -> Look:
    def look(pending: str, ended: bool) -> TextDecision:
        if (at := pending.find(word)) >= 0:
            return stop(at, "enough")
        return ALLOW if ended else hold_back(min(len(pending), len(word) - 1))

    return look


CHAINS = {
    "one": [loaded(Says(redact))],
    "in a thread": [loaded(Says(redact, inline=False), timeout_s=10.0)],
    "two": [loaded(Says(redact)), loaded(Says(shout), name="two")],
    "the other way": [loaded(Says(shout)), loaded(Says(redact), name="two")],
    "stopping": [loaded(Says(stop_at("kept"))), loaded(Says(redact), name="two")],
}


@pytest.mark.parametrize("stops", [(), ("END",)])
@pytest.mark.parametrize("pipeline", CHAINS)
def test_the_answer_is_the_same_for_any_steps(pipeline: str, stops: tuple[str, ...]) -> None:
    delivered = [deliver(TEXT, *CHAINS[pipeline], step=step, stop=stops) for step in (1, 2, 3, 5, 8, 200)]
    first = delivered[0]
    assert "[gone]" in first.text or "[Gone]" in first.text or "[GONE]" in first.text
    assert "SECRET" not in first.text
    for other in delivered[1:]:
        assert (other.text, other.token_ids, other.ending) == (first.text, first.token_ids, first.ending)
        assert (other.num_tokens, other.logprob_texts) == (first.num_tokens, first.logprob_texts)
        assert other.delivery.delivered == first.delivery.delivered
        assert other.delivery.lost == first.delivery.lost
    assert [delta.first for delta in first.deltas] == [True] + [False] * (len(first.deltas) - 1)


def test_without_policies_a_delta_is_as_it_was() -> None:
    delivered = deliver("plain text", step=3)
    assert delivered.text == "plain text"
    assert delivered.token_ids == [*b"plain text", 256]


def test_tokens_of_what_is_held_or_changed_are_not_shown() -> None:
    delivered = deliver("a SECRET99 b", loaded(Says(redact)), step=4)
    assert delivered.text == "a [gone] b"
    assert bytes(token for token in delivered.token_ids if token < 256) == b"a  b"
    assert "".join(delivered.logprob_texts) == "a  b<end>"
    seen = ""
    for delta in delivered.deltas:  # at no time is a token out whose text is not
        seen += delta.text
        raw = bytes(token for token in delta.token_ids if token < 256).decode()
        assert all(character in seen for character in raw)
    assert delivered.delivery.delivered["suffix"] == 5  # four letters and the end
    assert delivered.delivery.lost == {("suffix", "policy"): 8}


def test_characters_of_several_tokens_stay_together() -> None:
    held: list[str] = []

    def waits(pending: str, ended: bool) -> TextDecision:
        held.append(pending)
        return ALLOW if ended else hold_back(1)

    delivered = deliver("👋ü", loaded(Says(waits)), step=1)
    assert delivered.text == "👋ü"
    assert all("\ufffd" not in pending for pending in held)
    by_delta = [delta.token_ids for delta in delivered.deltas]
    assert by_delta == [tuple("👋".encode()), (*"ü".encode(), 256)]


def test_a_stop_ends_the_answer_there() -> None:
    delivered = deliver("one two three", loaded(Says(stop_at("two"))), step=4)
    assert delivered.text == "one "
    assert delivered.ending == ("content_filter", "one: enough")
    assert delivered.num_tokens == 7, "tokens up to the one that completed the word"
    assert delivered.delivery.delivered["suffix"] == 4
    assert delivered.delivery.lost == {("suffix", "policy"): 3}


def test_stop_strings_lose_tokens_too() -> None:
    delivered = deliver("abc END d", stop=("END",), step=4)
    assert delivered.text == "abc "
    assert delivered.delivery.delivered["suffix"] == 4
    assert delivered.delivery.lost == {("suffix", "stop_string"): 3}


def raises(pending: str, ended: bool) -> TextDecision:
    if "x" in pending:
        raise ValueError("broken")
    return ALLOW


OVER = threading.Event()
"""Set at the end of each test, for policies that hang."""


@pytest.fixture(autouse=True)
def over() -> Iterator[None]:
    OVER.clear()
    yield
    OVER.set()


def sleeps(pending: str, ended: bool) -> TextDecision:
    if "x" in pending:
        OVER.wait(60)
    return ALLOW


def holds(pending: str, ended: bool) -> TextDecision:
    return hold_back(len(pending))


def nonsense(pending: str, ended: bool) -> TextDecision:
    return rewrite(Rewrite(5, 2, "")) if "x" in pending else ALLOW


FAULTY: dict[str, tuple[Look, bool, str]] = {
    "raised": (raises, True, "abc"),
    "late": (sleeps, False, "abc"),
    "invalid": (nonsense, True, "abc"),
    "held_too_much": (holds, True, ""),
}
assert set(FAULTY) == set(get_args(Fault))


@pytest.mark.parametrize("fails_open", [True, False])
@pytest.mark.parametrize("kind", FAULTY)
def test_a_fault_takes_the_policy_out_or_ends_the_answer(kind: str, fails_open: bool) -> None:
    look, inline, before = FAULTY[kind]
    metrics = OutputMetrics(registry := CollectorRegistry())
    policy = loaded(
        Says(look, inline=inline), fails_open=fails_open, timeout_s=0.1 if kind == "late" else 10.0, max_held=2
    )
    delivered = deliver("abcxyz and so on", policy, metrics=metrics)
    if fails_open:
        assert delivered.text == "abcxyz and so on"
        assert delivered.ending == ("stop", None)
    else:
        assert delivered.text == before
        assert delivered.ending == ("content_filter", f"one: {kind}")
    labels = {"policy": "one", "kind": kind}
    assert registry.get_sample_value("prolepsis_output_policy_faults_total", labels) == 1


def test_text_held_back_at_the_end_is_a_fault() -> None:
    delivered = deliver("abc", loaded(Says(holds)))
    assert (delivered.text, delivered.ending) == ("", ("content_filter", "one: invalid"))


@pytest.mark.parametrize("fails_open", [True, False])
def test_a_policy_that_fails_at_its_beginning(fails_open: bool) -> None:
    class Broken:
        inline = True

        def begin(self, answer: AnswerFacts) -> AnswerReader | None:
            raise ValueError("no")

    delivered = deliver("abc", loaded(Broken(), fails_open=fails_open))
    assert delivered.text == ("abc" if fails_open else "")


def test_a_policy_that_hangs_is_asked_once() -> None:
    started: list[str] = []

    def hangs(pending: str, ended: bool) -> TextDecision:
        started.append(pending)
        OVER.wait(60)
        return ALLOW

    policy = loaded(Says(hangs, inline=False), fails_open=True, timeout_s=0.1)
    assert deliver("abcdef", policy).text == "abcdef"
    assert len(started) <= 1


async def test_threads_that_hang_are_not_replaced() -> None:
    workers, hung = Workers(max_threads=1), threading.Event()
    with pytest.raises(TimeoutError):
        await workers.run(lambda: hung.wait(30), 0.1)
    with pytest.raises(TimeoutError):
        await workers.run(lambda: True, 0.1)
    hung.set()
    assert await workers.run(lambda: 7, 10.0) == 7
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 // 0, 10.0)
