"""`prolepsis keys` from creation to revocation."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.server.cli.main import app
from prolepsis.server.front.key_file import KEY, KeyFile, default_key_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["keys", *arguments])


def test_create_list_revoke() -> None:
    created = keys(
        "create", "--tenant", "acme", "--role", "viewer", "--role", "client", "--expires-in", "90d", "--budget", "low"
    )
    assert created.exit_code == 0, created.output
    match = KEY.fullmatch(created.stdout.strip())
    assert match is not None
    [stored] = KeyFile(default_key_file()).read()
    assert (stored.tenant, stored.roles, stored.tier, stored.budget) == (
        "acme",
        ("viewer", "client"),
        "standard",
        "low",
    )
    assert stored.expires is not None
    assert (stored.expires - stored.created).days in (89, 90)

    listed = keys("list", "--json")
    [shown] = json.loads(listed.stdout)["keys"]
    assert shown["id"] == match[1]
    assert "hash" not in shown
    assert match[2] not in keys("list").stdout

    assert keys("revoke", match[1]).exit_code == 0
    assert KeyFile(default_key_file()).read() == ()
    assert keys("revoke", match[1]).exit_code == 2


def test_the_key_file_is_the_configured_one(home: Path) -> None:
    (home / "prolepsis.yaml").write_text("keys_file: here.json\n")
    document = json.loads(keys("create", "--json", "--note", "ci").stdout)
    assert KEY.fullmatch(document["key"])
    assert (document["file"], document["note"]) == ("here.json", "ci")
    keys("create", "--keys-file", "there.json")
    assert (home / "here.json").exists()
    assert (home / "there.json").exists()


@pytest.mark.parametrize("arguments", [["--expires-in", "soon"], ["--expires-in", "0d"], ["--tenant", "a b"]])
def test_bad_values_are_status_2(arguments: list[str]) -> None:
    assert keys("create", *arguments).exit_code == 2
