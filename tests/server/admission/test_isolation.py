"""Nothing of one tenant reaches another: suffix index, prefix cache, response cache; a real engine, real keys."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import pytest

from prolepsis.core.config import ServerConfig
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.proposers.suffix_index import SharedIndex, SuffixContinuation
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.fakes import EngineSetup
from tests.load.server import TableServer, serving
from tests.server.admission.conftest import bearer

PROMPT = "bcdefghijklmnopqrstuvw" * 4
"""Several pages long."""


class Watched(SharedIndex):
    """The suffix index of all tenants, which records what it found for each tenant."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.found: dict[int, int] = {}

    def find(self, tag: int, tokens: Sequence[int], length: int) -> list[SuffixContinuation]:
        found = super().find(tag, tokens, length)
        self.found[tag] = self.found.get(tag, 0) + len(found)
        return found


class Tenants:
    """Two tenants of one server."""

    def __init__(self, server: TableServer, keys: dict[str, str], index: Watched) -> None:
        self.server, self.keys, self.index = server, keys, index

    def ask(self, tenant: str, salt: str | None = None) -> httpx2.Response:
        body = {"model": "table", "prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        if salt is not None:
            body["cache_salt"] = salt
        url = f"{self.server.url}/v1/completions"
        response = httpx2.post(url, json=body, headers=bearer(self.keys[tenant]), timeout=10)
        assert response.status_code == 200
        return response


def cached(response: httpx2.Response) -> int:
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def tenants(folder: Path, config: ServerConfig) -> Iterator[Tenants]:
    file, keys = KeyFile(folder / "keys.json"), {}
    for tenant in ("ann", "bob"):
        record, keys[tenant] = new_key(tenant)
        file.add(record)
    suffix = SuffixProposer(native=False)
    suffix.shared = index = Watched()
    setup = EngineSetup(max_model_len=512, num_pages=256, proposers=(suffix,))
    with serving(TableServer(config, setup, Keys(file))) as server:
        yield Tenants(server, keys, index)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Tenants]:
    yield from tenants(tmp_path, ServerConfig(breaker="off"))


@pytest.fixture
def two_with_stored_answers(tmp_path: Path) -> Iterator[Tenants]:
    yield from tenants(tmp_path, ServerConfig(response_cache_bytes=1 << 20, breaker="off"))


def test_prefix_hits_stay_within_tenant_and_salt(two: Tenants) -> None:
    first = two.ask("ann")
    assert cached(first) == 0
    assert cached(two.ask("ann")) > 0
    assert cached(two.ask("bob")) == 0, "the time to the first token would show bob what ann asked"
    assert cached(two.ask("ann", "pepper")) == 0
    assert cached(two.ask("ann", "pepper")) > 0
    assert cached(two.ask("bob", "pepper")) == 0


def test_text_of_another_tenant_is_never_drafted(two: Tenants) -> None:
    """Ann's answer is just what bob's will be; only she may be drafted from it."""
    texts = {two.ask("ann").json()["choices"][0]["text"] for _ in range(2)}
    [of_ann] = two.index.found.values()
    assert of_ann > 0
    texts.add(two.ask("bob").json()["choices"][0]["text"])
    texts.add(two.ask("ann", "pepper").json()["choices"][0]["text"])
    assert len(two.index.found) == 3
    assert list(two.index.found.values())[1:] == [0, 0]
    assert len(texts) == 1


def test_stored_answers_stay_within_tenant_and_salt(two_with_stored_answers: Tenants) -> None:
    two = two_with_stored_answers
    asked = [("ann", None), ("ann", None), ("bob", None), ("ann", "pepper"), ("bob", "pepper"), ("bob", "pepper")]
    marks = [two.ask(tenant, salt).headers["x-response-cache"] for tenant, salt in asked]
    assert marks == ["miss", "hit", "miss", "miss", "miss", "hit"]


def test_a_tenant_cannot_name_anothers_scope(two: Tenants) -> None:
    """However salts are spelt, no pair of tenant and salt makes the scope of another."""
    scopes = set()
    for tenant in ("ann", "bob"):
        for salt in (None, "ann", "bob", "/ann", "ann/", ":", "|", "\tann"):
            two.ask(tenant, salt)
            scopes.add(next(reversed(two.index.found)))
    assert len(scopes) == 16
