"""Which database a setting names."""

from pathlib import Path

import pytest

from prolepsis.control.store.database import store_url
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError


def test_auto_is_a_file_in_the_data_directory_and_none_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    url = store_url("auto")
    assert url is not None
    assert url.database == str(tmp_path / "store.sqlite")
    assert store_url("none") is None
    assert not list(tmp_path.iterdir())


def test_postgresql_is_reached_through_psycopg() -> None:
    url = store_url("postgresql://ann:secret@db.example/prolepsis")
    assert url is not None
    assert url.render_as_string(hide_password=True) == "postgresql+psycopg://ann:***@db.example/prolepsis"


@pytest.mark.parametrize("text", ["", "store.db", "sqlite://", "sqlite:///:memory:", "mysql://root:secret@host/x"])
def test_other_settings_are_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:///FILE") as caught:
        store_url(text)
    assert "secret" not in str(caught.value)


def test_a_shown_configuration_has_no_password() -> None:
    config = ServerConfig(store="postgresql://ann:secret@db.example/prolepsis")
    assert config.model_dump(mode="json")["store"] == "postgresql://ann:***@db.example/prolepsis"
    assert config.store.count("secret") == 1
