"""Bundles: what is in a redacted one, that a changed one is refused, and what opens a sealed one."""

import json
from functools import reduce
from operator import getitem
from pathlib import Path

import pyrage
import pytest
from pyrage.x25519 import Identity

from prolepsis.control.audit import chain
from prolepsis.control.audit.bundle import Form, bundle_of, read_bundle, to_json
from prolepsis.control.audit.sealing import is_sealed, opened, private_key, public_key, seal_for, seal_with
from prolepsis.control.store.store import Store
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError, InvalidParameter
from tests.server.fakes import FakeEngine
from tests.world.site import Site

ASKED = {"model": "tiny", "prompt": ["Say hi", "Say ho"], "max_tokens": 40, "seed": 7}
NAMED = "ticket-of-acme"


@pytest.fixture
async def answer_id(store: Store) -> str:
    """The answer of a request with two prompts, on record."""
    config = ServerConfig(audit_sample=1.0, audit_content="tokens")
    async with Site(FakeEngine(text="ok"), config, store=store).http as http:
        reply = await http.post("/v1/completions", json=ASKED, headers={"x-request-id": NAMED})
    assert store.writer.flush(20.0)
    return str(reply.json()["id"])


def made(store: Store, name: str, form: Form) -> bytes:
    with store.database.read() as connection:
        return to_json(bundle_of(connection, name, form))


@pytest.mark.parametrize("form", ["redacted", "whole"])
async def test_all_prompts_are_in_it_with_seed_versions_and_tokens(store: Store, answer_id: str, form: Form) -> None:
    for name in (answer_id, NAMED):
        bundle = read_bundle(made(store, name, form), "it")
        assert len(bundle.entries) == len(bundle.records) == 2
        for entry, record in zip(bundle.entries, bundle.records, strict=True):
            assert entry.details is not None
            assert isinstance(entry.details.after, dict)
            assert entry.details.after["recording"]["params"]["seed"] == record["seed"]
            assert {"fingerprint", "weights", "tokenizer", "forward", "exactness", "machine"} <= entry.versions.keys()


async def test_a_redacted_bundle_does_not_say_whose_request_it_was(store: Store, answer_id: str) -> None:
    whole, redacted = made(store, answer_id, "whole").decode(), made(store, answer_id, "redacted").decode()
    for secret in (NAMED, '"tenant": "', '"key_id"', '"http_request_id"', '"prompt_digest"'):
        assert secret in whole
    for field in ("answer_id", "key_id", "http_request_id", "trace_id", "prompt_digest", "digest_salt"):
        assert f'"{field}"' not in redacted
    assert NAMED not in redacted
    assert all(entry["details"]["tenant"] == "" for entry in json.loads(redacted)["entries"])


async def test_the_policy_in_use_is_in_a_whole_bundle(store: Store) -> None:
    def applied(version: str, content: object) -> AuditEvent:
        return AuditEvent(
            actor="ann", action="policy.applied", versions={"policy": version}, after={"content": content}
        )

    served = AuditEvent(
        actor="server", action="request.served", versions={"policy": "v2@ab"}, subject="r1", names=("r1",)
    )
    with store.database.write() as connection:
        chain.append(connection, [applied("v2@abc", {"a": 1}), applied("v2@ab", {"a": 2}), served])
    assert read_bundle(made(store, "r1", "whole"), "it").policies == {"v2@ab": {"a": 2}}
    assert read_bundle(made(store, "r1", "redacted"), "it").policies == {}


@pytest.mark.parametrize(
    ("form", "path", "value"),
    [
        ("redacted", ("versions", "weights"), "other"),
        ("whole", ("versions", "weights"), "other"),
        ("whole", ("details", "after", "recording", "tokens"), [[1]]),
    ],
)
async def test_a_changed_entry_is_refused(
    store: Store, answer_id: str, form: Form, path: tuple[str, ...], value: object
) -> None:
    document = json.loads(made(store, answer_id, form))
    reduce(getitem, path[:-1], document["entries"][0])[path[-1]] = value
    with pytest.raises(ConfigError, match="entry 1 is not as it was written"):
        read_bundle(json.dumps(document).encode(), "it")


def test_an_unknown_request_is_named(store: Store) -> None:
    with pytest.raises(InvalidParameter, match="no request is known as 'nobody'; allowed: x-request-id"):
        made(store, "nobody", "redacted")


CONTENT = b"prompt and answer"


def test_only_the_recipient_opens_what_was_sealed_for_it() -> None:
    ours, other = Identity.generate(), Identity.generate()
    sealed = seal_for(CONTENT, ours.to_public())
    assert is_sealed(sealed)
    assert is_sealed(pyrage.encrypt(CONTENT, [ours.to_public()])), "made by others, in binary"
    assert not is_sealed(b'{"format": "prolepsis bundle 1"}')
    assert sealed.isascii()
    assert CONTENT not in sealed
    assert opened(sealed, "it", ours, None) == CONTENT
    with pytest.raises(ConfigError, match="it does not open with this key, or was changed"):
        opened(sealed, "it", other, None)
    with pytest.raises(ConfigError, match="it does not open with this passphrase"):
        opened(sealed, "it", None, "passphrase")
    with pytest.raises(ConfigError, match="it is sealed; it opens with its private key"):
        opened(sealed, "it", None, None)


def test_only_the_passphrase_opens_what_was_sealed_with_it() -> None:
    sealed = seal_with(CONTENT, "correct horse")
    assert sealed.isascii()
    assert opened(sealed, "it", None, "correct horse") == CONTENT
    with pytest.raises(ConfigError, match="this passphrase"):
        opened(sealed, "it", None, "wrong horse")


@pytest.mark.parametrize("place", [40, 120, 200, -40])
def test_a_changed_bundle_does_not_open(place: int) -> None:
    key = Identity.generate()
    sealed = bytearray(seal_for(CONTENT, key.to_public()))
    sealed[place] = ord("A") if sealed[place] != ord("A") else ord("B")
    with pytest.raises(ConfigError, match="was changed"):
        opened(bytes(sealed), "it", key, None)


def test_keys_are_found_in_their_files(tmp_path: Path) -> None:
    key, private, public = Identity.generate(), tmp_path / "key.txt", tmp_path / "key.pub"
    private.write_text(f"# created: today\n# public key: {key.to_public()}\n{key}\n")
    public.write_text(f"{key.to_public()}\n")
    assert opened(seal_for(CONTENT, public_key(public)), "it", private_key(private), None) == CONTENT
    with pytest.raises(ConfigError, match="holds no private key"):
        private_key(public)
    with pytest.raises(ConfigError, match="holds no public key"):
        public_key(private)
    with pytest.raises(ConfigError, match="holds no public key"):
        public_key(tmp_path / "missing.pub")
