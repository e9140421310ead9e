"""How a request ended: what counts against the service, and what its client did."""

import asyncio

import pytest

from prolepsis.control.web.errors import RequestAborted, RequestRefused
from prolepsis.core.ended import End
from prolepsis.core.errors import (
    AnswerBroken,
    ClientDeadlineExceeded,
    ContextTooLong,
    DeadlineExceeded,
    EngineDead,
    GrammarFailed,
    InvalidGrammar,
    StepFailed,
)
from prolepsis.server.answering.account import classified, client_family


@pytest.mark.parametrize(
    ("error", "end", "code"),
    [
        (ClientDeadlineExceeded("late"), "expired", "deadline_exceeded"),
        (DeadlineExceeded("late"), "failed", "deadline_exceeded"),
        (asyncio.CancelledError(), "left", None),
        (GeneratorExit(), "left", None),
        (InvalidGrammar("no"), "refused", "invalid_grammar"),
        (GrammarFailed("gave up"), "refused", "grammar_failed"),
        (AnswerBroken("no"), "broken", "answer_breaks_schema"),
        (ContextTooLong("long"), "refused", "context_length_exceeded"),
        (RequestRefused("no", code="queue_full", status=429), "refused", "queue_full"),
        (RequestRefused("no", code="server_full", status=503), "failed", "server_full"),
        (StepFailed("a step"), "failed", "engine_error"),
        (EngineDead("gone"), "failed", "engine_dead"),
        (RequestAborted("shutdown"), "aborted", None),
        (ZeroDivisionError(), "failed", "ZeroDivisionError"),
    ],
)
def test_only_what_the_server_did_is_its_failure(error: BaseException, end: End, code: str | None) -> None:
    assert classified(error) == (end, code)


@pytest.mark.parametrize(
    ("user_agent", "family"),
    [
        ("claude-cli/2.1.160 (external, cli)", "claude-code"),
        ("codex_cli_rs/0.63.0 (Debian 12; x86_64)", "codex"),
        ("OpenAI/Python 2.8.1", "openai-sdk"),
        ("AsyncOpenAI/Python 2.8.1", "openai-sdk"),
        ("Anthropic/JS 0.60.0", "anthropic-sdk"),
        ("ollama-python/0.6.0 (x86_64 linux) Python/3.11", "ollama"),
        ("Mozilla/5.0 (X11; Linux x86_64)", "browser"),
        ("curl/8.5.0", "other"),
        ("not claude-cli", "other"),
        (" ", "none"),
    ],
)
def test_family_of_a_user_agent(user_agent: str, family: str) -> None:
    assert client_family(user_agent) == family
