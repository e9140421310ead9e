"""Lines that would end the cached prefix: attribution is left out, others are moved only where the operator says so."""

from typing import Any

import httpx
import pytest

from prolepsis.core.config import MovedLine, ServerConfig, ServingLimits
from prolepsis.server.preparing.bodies import Message
from prolepsis.server.preparing.conversation import moved, without_attribution
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine

BILLING = "x-anthropic-billing-header: cc_version=2; cch=1;"
DATE, LEFT = "Today's date: 2026-11-27", "Token usage: 35000/200000; 165000 remaining"
BOTH: tuple[MovedLine, ...] = ("date", "tokens_left")


def conversation(system: str, last: str = "user") -> list[Message]:
    call = "c" if last == "tool" else None
    return [Message(role="system", content=system), Message(role=last, content="Hi", tool_call_id=call)]


def texts(messages: list[Message]) -> list[str | None]:
    return [message.content for message in messages]


@pytest.mark.parametrize("system", [f"{BILLING}\n\nBe brief.", "Be brief.", f"{BILLING}\nBe brief."])
def test_attribution_is_left_out(system: str) -> None:
    assert texts(without_attribution(conversation(system))) == ["Be brief.", "Hi"]


def test_a_system_text_of_nothing_else_is_none() -> None:
    assert texts(without_attribution(conversation(BILLING))) == ["Hi"]


def test_what_a_user_writes_stays() -> None:
    said = [Message(role="user", content=BILLING), Message(role="assistant", content=BILLING)]
    assert without_attribution(said) == said


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (DATE, "date"),
        ("Today is Friday, 27 November 2026.", "date"),
        ("- The current date is November 27, 2026", "date"),
        ("<current_date>2026-11-27</current_date>", "date"),
        ("Current time: 09:31", "date"),
        (LEFT, "tokens_left"),
        (f"<system_warning>{LEFT}</system_warning>", "tokens_left"),
        ("Context left: 12 %", "tokens_left"),
    ],
)
def test_a_line_that_is_named_is_moved_whole(line: str, name: MovedLine) -> None:
    messages = conversation(f"Be brief.\n{line}\nUse tools.")
    found, names = moved(messages, [name])
    assert texts(found) == ["Be brief.\nUse tools.", f"Hi\n\n<system-reminder>\n{line}\n</system-reminder>"]
    assert names == [name]
    other: list[MovedLine] = [one for one in BOTH if one != name]
    assert moved(messages, other) == (messages, [])
    assert moved(messages, ()) == (messages, [])


@pytest.mark.parametrize("line", ["Today I bought 3 apples", "Keep dates as 2026-11-27", "Spend at most 100 tokens"])
def test_other_lines_stay(line: str) -> None:
    messages = conversation(f"Be brief.\n{line}")
    assert moved(messages, BOTH) == (messages, [])


def test_lines_go_behind_a_result_and_not_into_an_answer_that_has_begun() -> None:
    found, _ = moved(conversation(f"{DATE}\n{LEFT}", "tool"), BOTH)
    assert texts(found) == [f"Hi\n\n<system-reminder>\n{DATE}\n{LEFT}\n</system-reminder>"]
    begun = conversation(DATE, "assistant")
    assert moved(begun, BOTH) == (begun, [])
    later = [Message(role="user", content="Hi"), *conversation(DATE)]
    assert moved(later, BOTH) == (later, [])


def ask(server: Served, system: str, **headers: str) -> httpx.Response:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hi"}]
    body = {"model": "tiny", "messages": messages}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers)
    reply.raise_for_status()
    return reply


def prompt(engine: FakeEngine) -> str:
    return bytes(engine.requests[-1].prompt_token_ids).decode()


def test_a_date_stays_where_it_is_and_nothing_is_said() -> None:
    with served(engine := FakeEngine()) as server:
        reply = ask(server, f"{BILLING}\n\nBe brief.\n{DATE}")
    assert prompt(engine) == f"system:Be brief.\n{DATE}\nuser:Hi\n"
    assert "warning" not in reply.headers


def test_what_is_moved_is_said() -> None:
    config = ServerConfig(
        lenient=("fields", "move_date", "move_tokens_left"), max_body_bytes=65536, limits=ServingLimits(start_drafts=0)
    )
    with served(engine := FakeEngine(), config) as server:
        reply = ask(server, f"Be brief.\n{DATE}")
        assert "moved from the system text to the end of the conversation: date" in reply.headers["warning"]
        assert "warning" not in ask(server, "Be brief.").headers
    assert bytes(engine.requests[0].prompt_token_ids).decode() == (
        f"system:Be brief.\n\nuser:Hi\n\n<system-reminder>\n{DATE}\n</system-reminder>\n"
    )


def test_hits_are_counted_by_client() -> None:
    agents = {"claude-cli/2.1.160 (external, cli)": "claude-code", "curl/8": "other", "codex_cli_rs/0.63": "codex"}
    with served(FakeEngine()) as server:
        for agent in agents:
            ask(server, "Be brief.", **{"user-agent": agent})
        found: list[dict[str, Any]] = httpx.get(f"{server.url}/admin/traffic").json()["clients"]
        assert {one["client"]: one["num_requests"] for one in found} == dict.fromkeys(agents.values(), 1)
        assert all(one["num_cached_tokens"] == 2 < one["num_prompt_tokens"] for one in found)
        text = httpx.get(f"{server.url}/metrics").text
        assert 'prolepsis_client_cached_tokens_total{client="claude-code"} 2.0' in text
        assert "from the prefix cache, by client" in httpx.get(f"{server.url}/console").text
