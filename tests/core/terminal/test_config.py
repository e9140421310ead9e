"""Precedence, refusal of what is unknown, and the spellings of each source."""

import re
from pathlib import Path

import pytest

import prolepsis
from prolepsis.core.config import RemoteProposerTerms
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.config import SECTIONS, field_names, load_settings, misspelt_variables


def file(directory: Path, text: str, name: str = "prolepsis.yaml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_no_field_name_stands_for_two_things() -> None:
    assert len(set(field_names())) == sum(len(section.model_fields) for section in SECTIONS)


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file(tmp_path, "port: 1\nhost: file.example\nthreads: 1\nmax_requests: 9\n")
    environment = {"PROLEPSIS_PORT": "2", "PROLEPSIS_HOST": "env.example"}
    settings = load_settings({"port": "3", "host": None}, environment, directory=tmp_path)
    assert (settings.server.port, settings.server.host) == (3, "env.example")
    assert (settings.engine.threads, settings.engine.max_requests) == (1, 9)
    assert settings.engine.kv_memory == "auto"
    assert settings.origins["port"] == "--port"
    assert settings.origins["host"] == "PROLEPSIS_HOST"
    assert "prolepsis.yaml" in settings.origins["threads"]
    assert "kv_memory" not in settings.origins


def test_a_named_file_replaces_the_one_in_the_directory(tmp_path: Path) -> None:
    file(tmp_path, "port: 1\n")
    other = file(tmp_path, "host: other.example\n", "other.yaml")
    settings = load_settings({}, {}, other, tmp_path)
    assert (settings.server.port, settings.server.host) == (8000, "other.example")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        ":8600",
        "127.0.0.1:0",
        "127.0.0.1:x",
        "::1:8600",
        "redis://h:6379",
        "redis://h:99999?stream=s",
        "redis://h/a?stream=s",
    ],
)
def test_the_address_of_a_propose_server_is_host_and_port_or_a_queue(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--remote-proposer, address is {address!r}; allowed: HOST:PORT")):
        load_settings({"remote_proposer": f"address={address}"}, {}, directory=tmp_path)
    assert load_settings({"remote_proposer": "address=[::1]:8600"}, {}, directory=tmp_path).engine.remote_proposer


def test_the_password_of_a_queue_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("address is 'redis://***@h/0'; allowed")):
        load_settings({"remote_proposer": "address=redis://:a/b@h/0"}, {}, directory=tmp_path)
    terms = RemoteProposerTerms(address="redis://:secret@[::1]:6379/0?stream=s")
    assert terms.address == "redis://:secret@[::1]:6379/0?stream=s"
    assert terms.model_dump(mode="json")["address"] == "redis://:***@[::1]:6379/0?stream=s"


def test_the_context_length_is_auto_or_a_number(tmp_path: Path) -> None:
    for given, found in (("auto", None), ("none", None), ("4096", 4096)):
        engine = load_settings({"max_model_len": given}, {}, directory=tmp_path).engine
        assert engine.max_model_len == found
        assert engine.model_dump()["max_model_len"] == (found or "auto")
    with pytest.raises(ConfigError, match=r"--max-model-len is '0'; allowed: "):
        load_settings({"max_model_len": "0"}, {}, directory=tmp_path)


def test_no_file_and_an_empty_file_give_defaults(tmp_path: Path) -> None:
    assert load_settings({}, {}, directory=tmp_path).origins == {}
    file(tmp_path, "# nothing\n")
    assert load_settings({}, {}, directory=tmp_path).origins == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv_memroy: 1GiB\n", r"'kv_memroy', which is unknown; did you mean 'kv_memory'\?"),
        ("- port\n", "holds a list; allowed: a mapping"),
        ("port: [\n", "is not YAML"),
        ("port: 70000\n", "port in .* is 70000; allowed: less than or equal to 65535"),
        ("forward: fast\n", "forward in .* is 'fast'; allowed: auto, native, lean, transformers"),
        ("3: 4\n", "sets 3, which is unknown"),
        ("replicas: 3\nmax_replicas: 2\n", "max_replicas in .* is 2; allowed: 3 or more, as replicas is 3"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    file(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        load_settings({}, {}, directory=tmp_path)


def test_a_file_that_is_missing_or_not_utf8_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        load_settings({}, {}, tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"host: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"bytes\.yaml is not UTF-8"):
        load_settings({}, {}, tmp_path / "bytes.yaml")


def test_errors_name_the_flag_or_the_variable() -> None:
    with pytest.raises(ConfigError, match="--threads is '0'"):
        load_settings({"threads": "0"}, {})
    with pytest.raises(ConfigError, match="PROLEPSIS_PORT is 'tcp://10"):
        load_settings({}, {"PROLEPSIS_PORT": "tcp://10.0.0.1:8000"})


def test_lists_mappings_and_none_may_be_written_as_text() -> None:
    environment = {"PROLEPSIS_PROPOSERS": "suffix, prediction"}
    settings = load_settings({"served_model_names": "none", "draft_model": "none"}, environment)
    assert settings.engine.proposers == ("suffix", "prediction")
    assert settings.server.served_model_names == ()
    assert settings.engine.draft_model is None
    assert load_settings({}, {"PROLEPSIS_PROPOSERS": ""}).engine.proposers != ()


def test_a_file_may_hold_lists_and_yaml_booleans_where_words_are_meant(tmp_path: Path) -> None:
    file(tmp_path, "proposers: [suffix]\nstrict: on\nprefix_cache: off\nthreads: null\n")
    settings = load_settings({}, {}, directory=tmp_path)
    assert settings.engine.proposers == ("suffix",)
    assert settings.engine.strict == "on"
    assert settings.engine.prefix_cache is False
    assert settings.engine.threads is None


def test_every_variable_that_the_program_reads_is_known() -> None:
    source = Path(prolepsis.__file__).parent
    texts = [path.read_text() for path in source.rglob("*") if path.suffix in (".py", ".cpp", ".h")]
    named = {name for text in texts for name in re.findall(r"(?<!-D)PROLEPSIS_[A-Z_]+", text)}
    assert "PROLEPSIS_API_KEY" in named
    assert list(misspelt_variables(dict.fromkeys(named, "x"))) == []


def test_a_misspelt_variable_is_found_and_a_foreign_one_is_not() -> None:
    environment = {"PROLEPSIS_MODLE": "x", "PROLEPSIS_CACHE": "/c", "PROLEPSIS_SERVICE_HOST": "10.0.0.1", "PATH": ""}
    assert list(misspelt_variables(environment)) == [("PROLEPSIS_MODLE", "PROLEPSIS_MODEL")]
