"""The engine's end of a connection: back-off, what a server may not do, TLS."""

import shutil
import ssl
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.core.codec import ProtocolError
from prolepsis.core.errors import ConfigError
from prolepsis.core.network import client_tls, server_tls
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.remote.link import Connection, ConnectionLost, Link
from prolepsis.engine.drafting.remote.messages import FROM_ENGINE, FROM_SERVER, Drafts, Forget, FromEngine
from prolepsis.engine.drafting.remote.proposer import RemoteProposer, RemoteSettings
from prolepsis.remote.propose.server import ProposeServer, ServedModel
from tests.engine.drafting.sequences import VOCAB, FakeSequence
from tests.remote.propose.servers import KEY, VOCABULARY, address, rude, serving


class Attempts:
    """Connections that a link makes; the clock stands where a test puts it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.number = 0
        self.link = Link(self._connect, lambda: self.now)

    def attempts_until(self, now: float) -> int:
        self.now = now
        assert self.link.connection() is None
        self.link.join()
        return self.number

    def _connect(self) -> Connection:
        self.number += 1
        raise ConnectionLost("refused")


def test_attempts_become_rarer() -> None:
    attempts = Attempts()
    found = [attempts.attempts_until(at) for at in (0.0, 0.05, 0.1, 0.25, 0.31, 0.5, 0.71)]
    assert found == [1, 1, 2, 2, 3, 3, 4]
    attempts.link.close()
    assert attempts.attempts_until(99.0) == 4


def test_a_connection_that_brought_drafts_is_made_again_soon() -> None:
    now = [0.0]
    with rude(lambda message: [FROM_SERVER.encode(Drafts(1, ()))]) as port:
        link = Link(address(port).connect, lambda: now[0])
        for at in (0.0, 0.2, 0.4, 0.6):
            now[0] = at
            assert link.connection() is None
            link.join()
            connection = link.connection()
            assert connection is not None
            connection.send(FROM_ENGINE.encode(Forget(1)))
            assert connection.receive(10.0) == [Drafts(1, ())]
            link.lose("for the test")
        link.close()


@pytest.mark.parametrize("answer", [FROM_ENGINE.encode(Forget(1)), b"\0\0\0\x01\x63", (2**31).to_bytes(4)], ids=str)
def test_anything_but_drafts_is_an_error(answer: bytes) -> None:
    with rude(lambda message: [answer]) as port:
        connection = address(port).connect()
        connection.send(FROM_ENGINE.encode(Forget(1)))
        with pytest.raises(ProtocolError):
            connection.receive(10.0)
        connection.close()


def test_a_server_that_reads_nothing_is_given_up() -> None:
    is_over = threading.Event()

    def hold(message: FromEngine) -> list[bytes]:
        is_over.wait()
        return []

    with rude(hold) as port:
        connection = address(port).connect()
        with pytest.raises(ConnectionLost, match="has not read"):
            _fill(connection)
        connection.close()
        is_over.set()


def _fill(connection: Connection) -> None:
    frames = FROM_ENGINE.encode(Forget(1)) * 50_000
    for _ in range(100):
        connection.send(frames)


def test_tls_is_verified_on_both_ends(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    ask = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    ask += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(ask, check=True, capture_output=True)
    model = ServedModel(PromptLookupProposer(min_match=1), VOCABULARY, VOCAB)
    with serving(ProposeServer(model, KEY), server_tls(chain, key)) as port:
        trusting = replace(address(port), tls=client_tls(chain, "remote_proposer_ca"))
        link = Link(trusting.connect)
        proposer = RemoteProposer(link, KEY, VOCAB, RemoteSettings(wait_s=10.0))
        sequence = FakeSequence([1, 2, 1], 3, params=SamplingParams(temperature=0.0))
        proposer.propose([sequence], [3])
        link.join()
        [draft] = proposer.propose([sequence], [3])
        assert draft is not None
        assert draft.tokens == (2, 1, 2)
        proposer.close()
        with pytest.raises(ssl.SSLError):
            replace(address(port), tls=ssl.create_default_context()).connect()


def test_tls_files_of_no_use_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("x")
    with pytest.raises(ConfigError, match="TLS cannot be set up"):
        client_tls(tmp_path / "x.pem", "remote_proposer_ca")
    with pytest.raises(ConfigError, match="TLS cannot be set up"):
        server_tls(tmp_path / "missing.pem", None)
    assert server_tls(None, None) is None
