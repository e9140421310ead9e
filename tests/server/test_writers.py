"""Writers: what the setting names, what they are asked, and what becomes of answers that are none."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from prolepsis.core.config import ServerConfig, WriterAddress, writers_by_name
from prolepsis.core.errors import ConfigError, InvalidParameter, ProlepsisError, UpstreamInvalid, UpstreamUnavailable
from prolepsis.server.writers import Writers, WriterText, WriterTexts
from tests.server.fake_writer import FakeWriter, writing

CHAT = "/v1/chat/completions"


async def written(writer: FakeWriter, **body: object) -> WriterTexts:
    writers = Writers([f"small={writer.url}/v1"])
    try:
        return await writers.write(writers.allowed(None, None), body)
    finally:
        await writers.close()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), {}),
        (("a=http://h:1/v1/",), {"a": WriterAddress("http://h:1")}),
        (
            ("a=https://h/api,m", "b=http://h:2"),
            {"a": WriterAddress("https://h/api", "m"), "b": WriterAddress("http://h:2")},
        ),
        (
            ("a=http://h:1", "m", "key", "b=http://h:2"),
            {"a": WriterAddress("http://h:1", "m", "key"), "b": WriterAddress("http://h:2")},
        ),
    ],
)
def test_the_setting_is_read_as_one_text_or_in_the_parts_of_a_flag(
    given: tuple[str, ...], found: Mapping[str, WriterAddress]
) -> None:
    assert writers_by_name(given) == found


@pytest.mark.parametrize(
    "given",
    [
        "a",
        "a=h:1",
        "=http://h:1",
        "target=http://h:1",
        "a=http://u:secret@h:1",
        "a=http://h,m,k,more",
        "a=http://h,b=ftp://h",
    ],
)
def test_other_texts_are_refused_without_their_passwords(given: str) -> None:
    with pytest.raises(ValueError, match="NAME=URL") as refused:
        ServerConfig(writers=(given,))
    assert "allowed: NAME=URL" in str(refused.value)


async def test_a_writer_writes_texts_and_says_what_they_cost() -> None:
    with writing("Hallo", "Welt") as writer:
        found = await written(writer, messages=[], n=2)
        assert found.texts == [WriterText("Hallo", "stop"), WriterText("Welt", "stop")]
        assert (found.usage["completion_tokens"], found.seconds) == (10, 0.02)
        assert writer.asked == [(CHAT, {"messages": [], "n": 2})]
        writer.device_ms = None
        assert (await written(writer)).seconds not in (0.0, 0.02)


async def test_a_key_goes_to_its_writer_alone(tmp_path: Path) -> None:
    (key := tmp_path / "key").write_text("sk-1\n")
    with writing("a") as with_key, writing("b") as without:
        writers = Writers([f"first={with_key.url},model-of-it,{key}", f"second={without.url}"])
        for name in ("first", "second"):
            await writers.write(name, {})
        await writers.close()
        assert (with_key.keys, without.keys) == (["Bearer sk-1"], [None])
        assert with_key.asked[0][1] == {"model": "model-of-it"}


def test_a_key_file_that_is_missing_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="writer's key"):
        Writers([f"a=http://h,,{tmp_path / 'none'}"])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"status": 503}, UpstreamUnavailable),
        ({"status": 401}, UpstreamInvalid),
        ({"raw": b"<html>"}, UpstreamInvalid),
        ({"raw": b"[]"}, UpstreamInvalid),
        ({"raw": b'{"choices": [{}]}'}, UpstreamInvalid),
    ],
)
async def test_an_answer_that_is_none_names_the_writer_and_shows_nothing_of_it(
    change: Mapping[str, object], error: type[ProlepsisError]
) -> None:
    with writing("a") as writer:
        for name, value in change.items():
            setattr(writer, name, value)
        with pytest.raises(error, match="writer 'small' answers with"):
            await written(writer)


async def test_a_writer_that_is_gone_is_unavailable() -> None:
    with writing() as writer:
        pass
    with pytest.raises(UpstreamUnavailable, match="does not answer"):
        await written(writer)


def test_a_rule_allows_writers_by_name() -> None:
    writers = Writers(["a=http://h:1", "b=http://h:2"])
    assert [writers.allowed(None, allowed) for allowed in (None, ("b",))] == ["a", "b"]
    for name, allowed in (("a", ("b",)), ("c", None), (None, ()), ("a", ())):
        with pytest.raises(InvalidParameter, match="writer is"):
            writers.allowed(name, allowed)
