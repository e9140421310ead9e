"""What is checked before upstream engines are used."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from prolepsis.adapters.upstream.pool import PoolLost
from prolepsis.adapters.upstream.start import spelling, start_upstream
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError, ModelLoadError, VocabularyMismatch
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from tests.adapters.upstream.fakes import APIS, FakeUpstream, lines, pool_at
from tests.loopback import Reply, Request, serving
from tests.server.fakes import ByteTokenizer
from tests.training.targets import save_target


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({}, "upstream.plain"),
        ({"upstream": {"speculating": "http://a"}}, "upstream.plain"),
        ({"upstream": {"plain": "a:8000"}}, "upstream.plain"),
        ({"upstream": {"plain": "http://a", "speculating": "ftp://b"}}, "upstream.speculating"),
        ({"upstream": {"plain": "http://a", "key_file": "/no/such/file"}}, "upstream.key_file"),
        ({"upstream": {"plain": "http://a"}, "weights": "q4"}, "weights"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as refused:
        start_upstream(EngineConfig.model_validate({"engine": "upstream", **settings}))
    assert param in str(refused.value)
    assert str(refused.value.param).partition(".")[0] == param.partition(".")[0]


@pytest.mark.parametrize("api", APIS)
def test_a_pool_is_checked_by_an_answer(api: Any) -> None:
    with serving(FakeUpstream(api)) as url:
        facts = pool_at(url, "plain", api).check()
    assert (facts.model, facts.max_model_len) == ("tiny", 256)


class Shifted(ByteTokenizer):
    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        return super().decode([token + 1 for token in token_ids])


def test_another_vocabulary_is_found() -> None:
    with serving(FakeUpstream()) as url:
        pool = pool_at(url, "plain")
        pool._tokenizer = Shifted()
        with pytest.raises(VocabularyMismatch, match="'there was' for token ids that are 'uifsf"):
            pool.check()


def test_a_pool_is_called_what_it_is() -> None:
    with serving(lambda request: Reply(404, b"{}")) as url, pytest.raises(PoolLost, match="answered 404"):
        pool_at(url, "plain").check()
    with serving(lambda request: Reply(200, b'{"data": []}')) as url, pytest.raises(PoolLost, match="no model"):
        pool_at(url, "plain").check()
    with serving(FakeUpstream("llama.cpp")) as url, pytest.raises(PoolLost):
        pool_at(url, "plain", "sglang").check()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


def config_of(folder: Path, url: str, **more: Any) -> EngineConfig:
    return EngineConfig.model_validate({"engine": "upstream", "model": str(folder), "upstream": {"plain": url}, **more})


class Spelled(FakeUpstream):
    """Answers with a text in the vocabulary of a model, and notes the keys it is shown."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        tokenizer = load_tokenizer(folder)
        ids = tokenizer.encode("there was", add_special_tokens=False)
        choice = {"text": tokenizer.decode(ids), "token_ids": ids, "finish_reason": "length"}
        self.said = lines([{"choices": [choice]}])
        self.keys: set[str | None] = set()

    def __call__(self, request: Request) -> Reply:
        self.keys.add(request.headers.get("authorization"))
        return super().__call__(request) if request.path == "/v1/models" else Reply(body=self.said)


async def test_a_client_knows_its_pools_and_its_tokenizer(folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    with serving(Spelled(folder)) as gone:
        pass
    upstream = Spelled(folder)
    with serving(upstream) as url:
        config = config_of(
            folder,
            url,
            upstream={"plain": url, "speculating": gone, "key_file": key},
            num_speculative_tokens=3,
        )
        started = await asyncio.to_thread(start_upstream, config)
        info, health = started.client.info, started.client.health()
        await started.client.close()
    assert (info.max_model_len, info.proposers, info.exactness) == (256, ("upstream",), "normal")
    assert info.vocab_size == load_tokenizer(folder).vocab_size
    assert health.ready
    assert "speculating pool: ConnectError" in health.detail
    assert upstream.keys == {"Bearer secret"}


def test_a_context_beyond_that_of_the_pools_is_refused(folder: Path) -> None:
    with serving(Spelled(folder)) as url, pytest.raises(ConfigError, match="max_model_len is 300; allowed: up to 256"):
        start_upstream(config_of(folder, url, max_model_len=300))


def test_no_pool_that_answers_is_an_error(folder: Path) -> None:
    with serving(FakeUpstream()) as url:
        pass
    with pytest.raises(ModelLoadError, match=f"no upstream engine answers: {url} ConnectError"):
        start_upstream(config_of(folder, url))


def test_a_character_is_spelled_as_in_the_middle_of_a_text() -> None:
    class Spaced(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return super().encode(f" {text}")

    assert list(spelling(Spaced())("👋")) == list("👋".encode())  # type: ignore[arg-type]
