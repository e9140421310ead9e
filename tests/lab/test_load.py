"""`prolepsis load` against servers in this process: what is sent when, and what is made of the answers."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from prolepsis.core.config import SYNTHETIC, ServerConfig
from prolepsis.core.errors import ConfigError, EngineError
from prolepsis.engine.drafting.proposers.synthetic import SyntheticProposer
from prolepsis.lab.load import LoadAnswer, arrivals, figures, requests, send, warnings
from prolepsis.lab.measure.arrivals import LatencyGoal
from prolepsis.lab.measure.prompts import Prompt
from prolepsis.lab.rehearsal.trace import Trace, TraceLine, write_trace
from prolepsis.server.cli.main import app
from tests.fake_client import INFO
from tests.fakes import EngineSetup
from tests.load.server import TableServer, serving
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine

LONG = replace(INFO, max_model_len=8192)
"""With room for the shipped prompts, a token a byte."""
FAST = ("--arrivals", "400", "--seconds", "0.1", "--json")
"""Some 40 requests."""


@pytest.fixture
def server() -> Iterator[Served]:
    with served(FakeEngine(info=LONG)) as made:
        yield made


def run(url: str, *flags: str) -> Result:
    return CliRunner().invoke(app, ["load", "--url", url, *FAST, *flags], env={"COLUMNS": "250"})


def document(url: str, *flags: str) -> Any:
    result = run(url, *flags)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_modes_stand_side_by_side(server: Served) -> None:
    found = document(server.url, "--modes", "off,auto,mixed", "--warm-up", "3")
    due = arrivals("400", 0.1, 128, 0)
    lines = {line["mode"]: line for line in found["modes"]}
    assert list(lines) == ["off", "auto", "mixed", "mixed: off", "mixed: auto"]
    assert {lines[mode]["num_requests"] for mode in ("off", "auto", "mixed")} == {len(due) - 3}
    assert lines["mixed: off"]["num_requests"] + lines["mixed: auto"]["num_requests"] == len(due) - 3
    assert all(line["num_errors"] == 0 and line["first_token_p95_s"] > 0.0 for line in lines.values())
    assert lines["auto"]["acceptance_rate"] == 0.5
    modes = [request.speculation.mode for request in server.engine.requests]
    assert modes[: len(due)] == ["off"] * len(due)
    assert modes[len(due) : 2 * len(due)] == ["auto"] * len(due)
    assert set(modes[2 * len(due) :]) == {"off", "auto"}
    assert found["proposers"] == ["suffix", "prediction"]


def test_no_request_sees_what_was_cached_of_its_prompt(server: Served) -> None:
    document(server.url)
    seen = [(request.prompt_token_ids, request.cache_salt) for request in server.engine.requests]
    assert len(set(seen)) == len(seen) > 32


@pytest.mark.parametrize("number", [4, 5])
def test_in_a_mixed_mode_each_prompt_is_asked_both_ways(number: int) -> None:
    prompts = [Prompt(f"p{i}", "chat", f"prompt {i}") for i in range(number)]
    lines = [TraceLine(at=0.0, prompt=0, output=8)] * (2 * number)
    asked = [body for _, body in requests(("off", "auto"), lines, prompts, {})]
    assert len({(body["messages"][0]["content"], body["speculation"]["mode"]) for body in asked}) == 2 * number


def test_the_seed_gives_arrivals_and_seeds_of_answers_again(server: Served) -> None:
    document(server.url, "--modes", "auto", "--seed", "7", "--temperature", "0.5", "--max-tokens", "9")
    assert {(one.params.seed, one.params.temperature, one.params.max_tokens) for one in server.engine.requests} == {
        (7, 0.5, 9)
    }
    assert len(server.engine.requests) == len(arrivals("400", 0.1, 9, 7)) != len(arrivals("400", 0.1, 9, 0))


def test_goodput_counts_what_keeps_the_goal(server: Served) -> None:
    patient = ("--goal-first-ms", "600000", "--goal-token-ms", "600000")
    assert document(server.url, "--modes", "off", *patient)["modes"][0]["goodput"] > 0.0
    assert document(server.url, "--modes", "off", "--goal-first-ms", "0")["modes"][0]["goodput"] == 0.0


def test_failures_are_counted_and_named_and_end_with_status_1() -> None:
    with served(FakeEngine(error=EngineError("the engine is tired"), fail_after=1, info=LONG)) as server:
        result = run(server.url, "--modes", "off")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["modes"][0]["num_errors"] == found["modes"][0]["num_requests"]
    assert any("the engine is tired" in told for told in found["warnings"])


def test_a_refusal_is_an_error_of_its_request(server: Served) -> None:
    body = {"model": "another", "messages": [], "stream": True, "speculation": {"mode": "off"}}
    (answer,) = asyncio.run(send(server.url, None, [(0.0, body)]))
    assert "ServerError" in answer.error
    assert answer.num_tokens == 0


def test_the_table_shows_the_modes(server: Served) -> None:
    result = CliRunner().invoke(
        app, ["load", "--url", server.url, *FAST[:-1], "--modes", "off,auto"], env={"COLUMNS": "250"}
    )
    assert result.exit_code == 0, result.output
    assert "goodput" in result.stdout
    assert "p95" in result.stdout


def test_synthetic_drafts_are_labelled() -> None:
    with served(FakeEngine(info=replace(LONG, proposers=(SYNTHETIC,)))) as server:
        assert "synthetic" in document(server.url, "--modes", "off")["warnings"][0]


CHUNK = {"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": 1}}


async def answers_when_all_are_there(number: int) -> list[LoadAnswer]:
    """Send requests to a server that answers none before it has all of them."""
    all_here = asyncio.Barrier(number)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await all_here.wait()
        writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: {json.dumps(CHUNK)}\n\n".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, backlog=number) as server:
        port = server.sockets[0].getsockname()[1]
        body = {"speculation": {"mode": "off"}}
        async with asyncio.timeout(60):
            return await send(f"http://127.0.0.1:{port}", None, [(0.0, body)] * number)


def test_requests_do_not_wait_for_each_other() -> None:
    """httpx2 itself would let 100 of them through."""
    answers = asyncio.run(answers_when_all_are_there(120))
    assert not any(answer.error for answer in answers)


def test_a_server_with_synthetic_drafts_accepts_them_at_their_rate(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    texts = ("abc", "bcd", "cde", "def")
    prompts.write_text("".join(json.dumps({"id": t, "category": "c", "prompt": t}) + "\n" for t in texts))
    setup = EngineSetup(max_model_len=512, num_pages=256, proposers=(SyntheticProposer((1.0,)),))
    config = ServerConfig(breaker="off", shed_after_s=())  # a slow machine would shed load, and decode plainly
    with serving(TableServer(config, setup)) as server:
        found = document(server.url, "--prompts", str(prompts), "--max-tokens", "24", "--warm-up", "0")
    off, auto = found["modes"]
    assert (off["acceptance_rate"], off["tokens_a_pass"]) == (None, 1.0)
    assert auto["acceptance_rate"] == 1.0
    assert auto["tokens_a_pass"] > 1.5


def answer(**changes: Any) -> LoadAnswer:
    given = {"error": "", "first_token_s": 0.5, "total_s": 1.5, "num_tokens": 11, **changes}
    return LoadAnswer(given.pop("at", 0.0), "off", given.pop("late_s", 0.0), **given)


def test_figures_are_of_the_answers_that_came() -> None:
    drafts = {"num_accepted_draft_tokens": 6, "num_draft_tokens": 8}
    answers = [answer(), answer(at=1.0, drafts=drafts), answer(at=2.0, first_token_s=3.0, total_s=4.0, num_tokens=1)]
    found = figures([*answers, answer(at=3.0, error="gone", total_s=1.0)], LatencyGoal())
    assert (found["num_requests"], found["num_errors"]) == (4, 1)
    assert (found["first_token_p50_s"], found["first_token_p95_s"]) == (0.5, pytest.approx(2.75))
    assert (found["per_token_p50_s"], found["total_p50_s"]) == (pytest.approx(0.1), 1.5)
    assert found["tokens_per_second"] == pytest.approx(23 / 6)
    assert found["goodput"] == pytest.approx(2 / 6)
    assert found["tokens_a_pass"] == pytest.approx(23 / 17)
    assert found["acceptance_rate"] == 0.75


def test_late_requests_are_reported() -> None:
    assert warnings("off", [answer(late_s=0.01)]) == []
    (told,) = warnings("off", [answer(late_s=0.01), answer(late_s=0.5), answer(late_s=2.5)])
    assert "2 requests" in told
    assert "2.5 s" in told


def test_arrivals_are_as_many_as_the_rate_says() -> None:
    found = [line.at for line in arrivals("4", 1000.0, 7, 3)]
    assert 3800 < len(found) < 4200  # 3 standard deviations
    assert found == sorted(found)
    assert found[-1] < 1000.0
    assert {line.output for line in arrivals("4", 100.0, 7, 3)} == {7}


def test_a_ramp_rises() -> None:
    found = [line.at for line in arrivals("1-7", 1000.0, 7, 3)]
    early = sum(at < 500.0 for at in found)
    assert 3800 < len(found) < 4200
    assert 1150 < early < 1350  # 2.5 a second on average
    falling = [line.at for line in arrivals("7-0", 1000.0, 7, 3)]
    assert 2450 < sum(at < 500.0 for at in falling) < 2800  # 5.25 a second


def test_a_trace_has_its_own_times_and_lengths(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl.gz"
    lines = tuple(TraceLine(at=float(at), prompt=5, output=at + 1) for at in range(5))
    write_trace(file, Trace(lines=lines))
    assert [(line.at, line.output) for line in arrivals(str(file), 3.0, 7, 0)] == [(0.0, 1), (1.0, 2), (2.0, 3)]


@pytest.mark.parametrize("given", ["fast", "1-", "-3", "1e9"])
def test_other_arrivals_are_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="ramp such as 1-8"):
        arrivals(given, 1.0, 7, 0)


@pytest.mark.parametrize(("flags", "told"), [(("--modes", "on"), "off, auto, mixed"), (("--warm-up", "99"), "warm-up")])
def test_what_cannot_be_sent_is_refused(server: Served, flags: tuple[str, ...], told: str) -> None:
    result = run(server.url, *flags)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_a_quarter_states_the_goal_as_its_target(server: Served) -> None:
    given = ("--modes", "targets", "--warm-up", "0", "--goal-first-ms", "600000", "--goal-token-ms", "0.001")
    found = document(server.url, *given)
    lines = {line["mode"]: line for line in found["modes"]}
    assert list(lines) == ["targets", "targets: target", "targets: auto"]
    assert lines["targets"]["num_errors"] == lines["targets"]["within_goal"] == 0
    stated = [request.target.ms_per_token for request in server.engine.requests if request.target is not None]
    assert stated == [0.001] * lines["targets: target"]["num_requests"]
    assert {request.speculation.mode for request in server.engine.requests} == {"auto"}
    assert 0.2 < len(stated) / len(server.engine.requests) < 0.3
