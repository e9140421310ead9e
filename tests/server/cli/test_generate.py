"""The command line's half of a generation, against a scripted engine."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prolepsis.core.errors import DeadlineExceeded, EngineError, InvalidParameter
from prolepsis.core.events import Aborted, Event, Failed, Finished, Tokens
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats
from prolepsis.server.cli.generate import Answer, GenerateCall, answer_to
from prolepsis.server.cli.main import app
from tests.fake_client import FakeEngineClient, answer


class LetterTokenizer:
    """One token a byte; the chat template writes 'role:content;'."""

    eos_token_ids = (0,)

    def __init__(self, chat_template: str | None = "one") -> None:
        self.chat_template = chat_template

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*([0] if add_special_tokens else []), *text.encode()]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode(errors="replace")

    def apply_chat_template(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        return self.encode("".join(f"{m['role']}:{m['content']};" for m in messages), add_special_tokens=False)


def an_ask(
    *, system: str | None = None, raw: bool = False, prediction: str | None = None, stop: tuple[str, ...] = ()
) -> GenerateCall:
    params = SamplingParams(temperature=0.0, stop=stop)
    return GenerateCall("hi", system, raw, prediction, SpeculationChoice("off"), params)


async def ask(
    client: FakeEngineClient, question: GenerateCall, *, chat_template: str | None = "one"
) -> tuple[Answer, list[str]]:
    shown: list[str] = []
    return await answer_to(question, client, LetterTokenizer(chat_template), shown.append), shown


def steps(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


async def test_text_is_shown_as_it_comes_and_returned_whole() -> None:
    stats = RequestStats(num_output_tokens=7, num_steps=3)
    result, shown = await ask(FakeEngineClient(answer(steps("ab", "cde", "fg"), stats)), an_ask())
    assert shown == ["ab", "cde", "fg"]
    assert (result.text, result.finish_reason, result.token_ids) == ("abcdefg", "stop", tuple(b"abcdefg"))
    assert result.stats is stats


async def test_a_character_in_two_steps_is_shown_whole() -> None:
    euro = "€".encode()
    _, shown = await ask(FakeEngineClient(answer([euro[:1], euro[1:]])), an_ask())
    assert shown == ["€"]


async def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    result, shown = await ask(FakeEngineClient(answer(steps("one E", "ach"))), an_ask(stop=("END",)))
    assert (result.text, shown) == ("one Each", ["one ", "Each"])


async def test_the_stop_string_itself_is_not_shown() -> None:
    result, _ = await ask(FakeEngineClient(answer(steps("one EN", "D"))), an_ask(stop=("END",)))
    assert result.text == "one "


@pytest.mark.parametrize(
    ("question", "prompt"),
    [
        (an_ask(), "user:hi;"),
        (an_ask(system="be brief"), "system:be brief;user:hi;"),
        (an_ask(raw=True), "\0hi"),
    ],
)
async def test_the_prompt_goes_through_the_chat_template_unless_raw(question: GenerateCall, prompt: str) -> None:
    client = FakeEngineClient(answer(steps("x")))
    await ask(client, question)
    [request] = client.requests
    assert bytes(request.prompt_token_ids).decode() == prompt
    assert request.speculation == SpeculationChoice("off")
    assert request.params is question.params


async def test_a_model_without_a_template_continues_the_prompt() -> None:
    client = FakeEngineClient(answer(steps("x")))
    await ask(client, an_ask(), chat_template=None)
    assert bytes(client.requests[0].prompt_token_ids) == b"\0hi"
    with pytest.raises(InvalidParameter, match="takes no system message"):
        await ask(client, an_ask(system="be brief"), chat_template=None)


async def test_the_prediction_is_tokenised_without_special_tokens() -> None:
    client = FakeEngineClient(answer(steps("x")))
    await ask(client, an_ask(prediction="text"))
    assert client.requests[0].prediction_token_ids == tuple(b"text")


async def test_a_failed_request_raises_its_error() -> None:
    def script(request: GenerateRequest) -> Iterable[Event]:
        yield Tokens(request.request_id, 0, (97,), position=0)
        yield Failed(request.request_id, DeadlineExceeded("too late"), RequestStats())

    with pytest.raises(DeadlineExceeded, match="too late"):
        await ask(FakeEngineClient(script), an_ask())


async def test_an_aborted_request_raises() -> None:
    def script(request: GenerateRequest) -> Iterable[Event]:
        yield Aborted(request.request_id, RequestStats(), "shutdown")

    with pytest.raises(EngineError, match="aborted: shutdown"):
        await ask(FakeEngineClient(script), an_ask())


async def test_each_request_has_an_id_of_its_own() -> None:
    client = FakeEngineClient(lambda request: [Finished(request.request_id, RequestStats())])
    await ask(client, an_ask())
    await ask(client, an_ask())
    assert client.requests[0].request_id != client.requests[1].request_id
    async with aclosing(client.generate(client.requests[0])) as events:
        assert [type(event) async for event in events] == [Finished]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hi", "--temperature", "9"], "error: temperature is 9.0; allowed: 0 to 2"),
        (["hi", "--max-tokens", "0"], "error: max_tokens is 0; allowed: 1 or more"),
        (["hi", "--max-tokens", "3", "--min-tokens", "4"], "error: min_tokens is 4; allowed: at most max_tokens (3)"),
        (["hi", "--stop", ""], "error: stop holds an empty string; allowed: non-empty strings"),
        ([""], "error: the prompt is empty; allowed: some text"),
        (["hi", "--prediction", "no/such/file"], "error: prediction no/such/file cannot be read: No such file"),
        (["hi", "--forward", "fast"], "error: --forward is 'fast'; allowed: auto, native, lean, transformers"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["generate", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(message)


def test_standard_input_that_is_not_utf8_is_refused() -> None:
    result = CliRunner().invoke(app, ["generate", "-"], input=b"\xff\xfe")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the prompt is not UTF-8")


def test_a_model_that_is_nowhere_is_status_3(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["generate", "hi", "--model", "no/such/model", "--model-dir", str(tmp_path)])
    assert result.exit_code == 3
    assert "no/such/model" in result.stderr
