"""What the log holds of a day of requests: no key, no prompt, no answer."""

import io

import pytest

from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import EngineError
from prolepsis.core.telemetry.logs import configure_logs
from tests.server.admission.conftest import KeyedApp, bearer
from tests.server.fakes import FakeEngine

SECRETS = ("swordfish", "Grüße", "open sesame", "pepper-salt")


@pytest.fixture(params=[False, True], ids=["console", "json"])
def log(request: pytest.FixtureRequest) -> io.StringIO:
    out = io.StringIO()
    configure_logs("debug", as_json=request.param, stream=out)
    return out


async def test_no_secret_and_no_text_is_logged(keyed_app: KeyedApp, log: io.StringIO) -> None:
    key = keyed_app.key()
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "swordfish"}],
        "cache_salt": "pepper-salt",
        "stop": ["open sesame"],
    }
    engine = FakeEngine()
    async with keyed_app.open(engine, ServerConfig(max_body_bytes=4096)) as http:
        for changes in (
            {},
            {"stream": True},
            {"temperature": "swordfish"},
            {"swordfish": 1},
            {"n": 3, "logprobs": True},
        ):
            await http.post("/v1/chat/completions", json=chat | changes, headers=bearer(key))
        engine.fail_after, engine.error = 1, EngineError("a step failed")
        await http.post("/v1/chat/completions", json=chat, headers=bearer(key))
        engine.fail_after, engine.error = None, ValueError("about swordfish and Grüße")
        assert (await http.post("/v1/chat/completions", json=chat, headers=bearer(key))).status_code == 500
        await http.post("/v1/chat/completions", content=b'{"messages": "swordfish', headers=bearer(key))
        await http.post("/v1/chat/completions", json=chat, headers=bearer(key[:-1] + "!"))
        await http.get("/v1/models/swordfish?key=" + key, headers={"x-api-key": key})
    written = log.getvalue()
    assert written.count("http_request") >= 9
    assert "ValueError" in written
    for secret in (*SECRETS, key, key.split("_", 2)[2]):
        assert secret not in written
