"""`prolepsis chat` against a served fake engine, and the origins that it shows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import msgspec
import pytest
from typer.testing import CliRunner

from prolepsis.core.errors import EngineError, InvalidParameter
from prolepsis.core.events import Event, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.terminal.admin import NoServer
from prolepsis.server.cli.chat import ChatSession, Colours, DraftedText
from prolepsis.server.cli.main import app
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine

TEXT = "abcdefgh"


class DraftingEngine(FakeEngine):
    """Of the three tokens of a step the first two were drafted."""

    def _say(self, request: GenerateRequest) -> Iterable[Event | float | Exception]:
        for event in super()._say(request):
            if isinstance(event, Tokens) and request.speculation.enabled:
                yield with_origins(event)
            else:
                yield event


def with_origins(event: Tokens) -> Tokens:
    return msgspec.structs.replace(event, accepted_by=("suffix", "head")[: len(event.token_ids) - 1])


@pytest.fixture
def server() -> Iterator[Served]:
    with served(DraftingEngine(TEXT)) as made:
        yield made


def talk(server: Served, **changes: Any) -> ChatSession:
    return replace(ChatSession(server.url, None, "tiny", 64, 0.0), **changes)


def test_an_answer_comes_in_pieces_of_one_origin(server: Served) -> None:
    conversation = talk(server)
    pieces = list(conversation.say("hi"))
    assert [(piece.text, piece.by) for piece in pieces[:3]] == [("a", "suffix"), ("b", "head"), ("c", "")]
    assert "".join(piece.text for piece in pieces) == TEXT
    assert conversation.messages[-1] == {"role": "assistant", "content": TEXT}
    assert conversation.usage["completion_tokens"] == len(TEXT) + 1
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]


def test_without_drafts_nothing_has_an_origin(server: Served) -> None:
    assert {piece.by for piece in talk(server, speculation={"mode": "off"}).say("hi")} == {""}


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_origins_stand_in_whole_answers_where_they_are_asked_for(server: Served, path: str) -> None:
    body = (
        {"model": "tiny", "prompt": "hi"}
        if path == "completions"
        else {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
        }
    )
    [plain] = httpx2.post(f"{server.url}/v1/{path}", json=body).json()["choices"]
    assert "origins" not in plain
    [choice] = httpx2.post(f"{server.url}/v1/{path}", json={**body, "speculation": {"origins": True}}).json()["choices"]
    assert choice["origins"][:3] == [
        {"text": "a", "drafted_by": "suffix"},
        {"text": "b", "drafted_by": "head"},
        {"text": "c", "drafted_by": None},
    ]
    assert "".join(piece["text"] for piece in choice["origins"]) == TEXT


def test_a_refused_question_is_no_part_of_the_conversation(server: Served) -> None:
    conversation = talk(server, model="other")
    with pytest.raises(InvalidParameter, match="'other' does not exist"):
        list(conversation.say("hi"))
    assert conversation.messages == []


def test_an_answer_that_fails_is_an_error_and_not_an_end() -> None:
    engine = DraftingEngine(TEXT, fail_after=1, error=EngineError("the engine is gone"))
    with served(engine) as server, pytest.raises(InvalidParameter, match="the engine is gone"):
        list(talk(server).say("hi"))


def test_no_server() -> None:
    with pytest.raises(NoServer, match="no server answers"):
        list(ChatSession("http://127.0.0.1:9", None, "tiny", None, None).say("hi"))


def test_the_command_asks_until_the_end_and_obeys(server: Served) -> None:
    said = "hi\n/plain\nagain\n/help\n/new\n/quit\n"
    done = CliRunner().invoke(app, ["chat", "--url", server.url, "--max-tokens", "64"], input=said)
    assert done.exit_code == 0, done.output
    assert done.stdout.count(TEXT) == 2
    first, second = server.engine.requests
    assert (first.speculation.enabled, second.speculation.enabled) == (True, False)
    assert len(second.prompt_token_ids) > len(first.prompt_token_ids), "it has the conversation so far"


def test_one_question(server: Served) -> None:
    done = CliRunner().invoke(app, ["chat", "hi", "--url", server.url])
    assert (done.exit_code, done.stdout) == (0, f"{TEXT}\n")


def test_each_proposer_has_a_colour() -> None:
    colours = Colours()
    styles = [colours.text(DraftedText("x", by)).style for by in ("suffix", "", "head", "suffix")]
    assert styles[0] == styles[3] != styles[2]
    assert styles[1] == ""
    assert colours.legend().plain == "suffix head "
