"""The command before it loads anything; what it serves is tested in tests/remote/propose."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from prolepsis.core.terminal.output import BAD_INPUT
from prolepsis.server.cli.main import app


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "8600"], "allowed: HOST:PORT"),
        ([], "remote_proposer.key is not set"),
        (["--tls-key", "key.pem"], "tls_key is given without tls_certificate"),
    ],
)
def test_what_is_refused(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["propose-server", *options])
    assert result.exit_code == BAD_INPUT
    assert message in " ".join(result.output.split())


def test_a_key_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short")
    result = CliRunner().invoke(app, ["propose-server", "--remote-proposer", f"key={tmp_path / 'key'}"])
    assert result.exit_code == BAD_INPUT
    assert "at least 32" in " ".join(result.output.split())
