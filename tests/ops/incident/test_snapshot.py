"""The archive: a source that is broken costs only itself."""

import io
import tarfile
from datetime import UTC, datetime, timedelta

from prolepsis.core.errors import ConfigError
from prolepsis.ops.incident.period import Period
from prolepsis.ops.incident.snapshot import Source, archive, made, read_part

NOW = datetime(2026, 11, 22, 18, 30, tzinfo=UTC)
PERIOD = Period(NOW - timedelta(minutes=15), NOW)


def refused() -> object:
    raise ConfigError("no server answers at http://key:hunter2@host")


def broken() -> object:
    raise KeyError("state")


def test_a_broken_source_is_named_and_the_others_are_there() -> None:
    one = Source("a.json", "one", lambda: {"n": 1})
    parts = [*map(read_part, (one, Source("b.txt", "two", refused), Source("c.txt", "three", broken)))]
    with tarfile.open(fileobj=io.BytesIO(archive(parts, PERIOD, NOW))) as tar:
        assert tar.getnames() == ["incident/index.md", "incident/a.json"]
        assert {entry.mode for entry in tar} == {0o600}
        index = tar.extractfile("incident/index.md")
        assert index is not None
        text = index.read().decode()
    assert "| `a.json` | one |" in text
    assert "| `c.txt` | three | KeyError: 'state' |" in text
    assert "no server answers" in text
    assert "hunter2" not in text
    event = made(parts, PERIOD, "ann")
    assert isinstance(event.after, dict)
    assert (event.after["files"], event.after["missing"]) == (["a.json"], ["b.txt", "c.txt"])
