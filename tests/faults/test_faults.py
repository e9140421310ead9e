"""One part fails at a time: what the user sees, and that the next request is served where anything can."""

import errno
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx2
import pytest

from prolepsis.core.config import ServerConfig
from prolepsis.core.requests import GrammarSpec
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import CompiledGrammar
from tests.fakes import EOS, VOCAB, EngineSetup
from tests.load.server import LetterTokenizer, TableServer, serving
from tests.waiting import wait_for

BODY = {"model": "table", "prompt": "banana", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
PRIVATE = "private thoughts"


@contextmanager
def opened(server: TableServer) -> Iterator[httpx2.Client]:
    with serving(server), httpx2.Client(base_url=server.url, timeout=60) as http:
        yield http


def ask(http: httpx2.Client, **changes: object) -> httpx2.Response:
    return http.post("/v1/completions", json=BODY | changes)


def error_of(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_the_engine_thread_dies() -> None:
    """Who waits for an answer and who asks later hear 503; liveness says so, that the process may be replaced."""
    server = TableServer()
    with opened(server) as http:
        assert ask(http).status_code == 200
        with http.stream("POST", "/v1/completions", json=BODY | {"stream": True, "max_tokens": 400}) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: {")
            server.engine.dies = True
            rest = [line for line in lines if line]
        assert "engine_dead" in rest[-1]
        assert "[DONE]" not in rest[-1]
        later = ask(http)
        assert error_of(later) == (503, "engine_dead")
        assert "retry-after" in later.headers
        assert http.get("/health/live").status_code == 503
        assert http.get("/health/ready").status_code == 503
        assert http.get("/health/deep").status_code == 503
        assert 'outcome="failed"' in http.get("/metrics").text
    server.check_ended_once()


def test_a_step_that_fails_costs_its_requests_only() -> None:
    server = TableServer()
    with opened(server) as http:
        server.setup.model.fail_next = 1
        failed = ask(http)
        assert error_of(failed) == (500, "engine_error")
        assert failed.headers["x-should-retry"] == "false"
        assert ask(http).status_code == 200
        assert http.get("/health/live").status_code == 200
        server.check_ended_once()


class Raising(Proposer):
    """A proposer that cannot."""

    name = "raising"

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        raise RuntimeError(PRIVATE)

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        raise RuntimeError(PRIVATE)

    def forget(self, sequence: SequenceView) -> None:
        raise RuntimeError(PRIVATE)


def test_a_proposer_that_raises_costs_no_answer() -> None:
    with opened(TableServer()) as http:
        expected = ask(http).json()["choices"]
    server = TableServer(setup=EngineSetup(max_model_len=512, num_pages=256, proposers=(Raising(),)))
    with opened(server) as http:
        response = ask(http)
        assert response.json()["choices"] == expected
        assert response.headers["x-spec-effective"].startswith("mode=off;reason=")
        assert "prolepsis_spec_decode_proposer_failures_total" in http.get("/metrics").text
        assert server.sample("spec_decode_proposer_failures_total", proposer="raising") > 0
        server.check_ended_once()


class BrokenCompiler(Grammars):
    """A grammar library with a bug."""

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        raise RuntimeError(PRIVATE)


def grammars(kind: type[Grammars]) -> Grammars:
    return kind(lambda: "{}", VOCAB, (EOS,))


@pytest.mark.parametrize("stream", [False, True])
def test_the_grammar_compiler_fails(stream: bool) -> None:
    server = TableServer(setup=EngineSetup(max_model_len=512, num_pages=256, grammars=grammars(BrokenCompiler)))
    with opened(server) as http:
        failed = ask(http, stream=stream, structured_outputs={"regex": "b+"})
        assert error_of(failed) == (500, "internal_error")
        assert PRIVATE not in failed.text
        assert ask(http).status_code == 200
        server.check_ended_once()


def test_a_grammar_that_cannot_be_compiled_is_the_callers_fault() -> None:
    server = TableServer(setup=EngineSetup(max_model_len=512, num_pages=256, grammars=grammars(Grammars)))
    with opened(server) as http:
        failed = ask(http, structured_outputs={"regex": "b("})
        assert error_of(failed) == (400, "invalid_grammar")
        assert failed.json()["error"]["param"].startswith("structured_outputs")
        assert ask(http).status_code == 200
        server.check_ended_once()


class Forgetful(LetterTokenizer):
    """Fails on some prompts, and on some tokens while it decodes."""

    broken = False

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if "zz" in text:
            raise ValueError(f"cannot encode {text}")
        return super().encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if self.broken:
            raise ValueError(f"cannot decode {token_ids}: {PRIVATE}")
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_the_tokenizer_fails(stream: bool) -> None:
    log = io.StringIO()
    configure_logs("debug", stream=log)
    tokenizer = Forgetful()
    server = TableServer(tokenizer=tokenizer)
    with opened(server) as http:
        failed = ask(http, prompt=f"zz {PRIVATE}", stream=stream)
        assert error_of(failed) == (500, "internal_error")
        tokenizer.broken = True
        failed = ask(http, stream=stream)
        assert error_of(failed) == (500, "internal_error")
        tokenizer.broken = False
        assert PRIVATE not in failed.text
        assert ask(http).status_code == 200
        server.check_ended_once()
    assert "request_failed" in log.getvalue()
    assert "ValueError" in log.getvalue()
    assert PRIVATE not in log.getvalue()


class FullDisk(io.StringIO):
    """A log file on a disk without room."""

    num_refused = 0

    def write(self, text: str) -> int:
        self.num_refused += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_log_lines_and_nothing_else() -> None:
    disk = FullDisk()
    configure_logs("debug", stream=disk)
    server = TableServer(ServerConfig(max_in_engine=1))
    with opened(server) as http:
        for changes in ({}, {"temperature": "hot"}, {"stream": True}):
            assert ask(http, **changes).status_code in (200, 400)
        server.setup.model.fail_next = 1
        assert error_of(ask(http)) == (500, "engine_error")
        assert ask(http).status_code == 200
        server.check_ended_once()
    assert disk.num_refused > 5


def test_memory_of_pages_runs_short() -> None:
    """More answers than pages: they take turns, and all end."""
    server = TableServer(setup=EngineSetup(max_model_len=256, num_pages=20, max_sequences=8))
    with opened(server) as http:
        response = ask(http, n=8, max_tokens=100, temperature=1, seed=3)
        assert response.status_code == 200
        assert len(response.json()["choices"]) == 8
        wait_for(lambda: not server.engine.has_work)
        server.check_ended_once()
