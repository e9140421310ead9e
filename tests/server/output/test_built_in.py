"""The policies that come with the server, and the file that names them."""

import sys
from pathlib import Path
from typing import cast

import httpx2
import pytest
import regex

from prolepsis.core.errors import ConfigError
from prolepsis.server.output.built_in import Patterns, Repetition, search
from prolepsis.server.output.file import read_output_policies
from tests.server.output.policies import deliver, loaded

KEY = "sk-" + "a1B2" * 8
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize("step", [1, 3, 7, 500])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"use {KEY} here", "use [SECRET] here"),
        (f"use {KEY}", "use [SECRET]"),
        (f"{PEM} and {KEY}!", "[SECRET] and [SECRET]!"),
        ("ask me s, sk-, sk-short and AKIA", "ask me s, sk-, sk-short and AKIA"),
        ("task-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "task-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
    ],
)
def test_secrets_are_replaced_and_what_only_began_like_one_is_shown(text: str, shown: str, step: int) -> None:
    delivered = deliver(text, loaded(Patterns()), step=step)
    assert delivered.text == shown
    assert delivered.ending == ("stop", None)


def test_no_part_of_a_secret_is_out_at_any_time() -> None:
    delivered = deliver(f"use {KEY} here", loaded(Patterns()), step=2)
    seen = ""
    for delta in delivered.deltas:
        seen += delta.text
        assert "sk" not in seen


def test_patterns_of_the_operator_can_end_the_answer() -> None:
    policy = Patterns(patterns={"codename": r"(?i)project\s+orion"}, stops=True)
    delivered = deliver("About Project  Orion we say nothing", loaded(policy))
    assert (delivered.text, delivered.ending) == ("About ", ("content_filter", "one: codename"))


def test_a_match_without_end_ends_the_answer() -> None:
    delivered = deliver("sk-" + "a" * 100, loaded(Patterns(max_match=50)))
    assert (delivered.text, delivered.ending) == ("", ("content_filter", "one: a match does not end"))


def test_a_pattern_that_takes_too_long_is_a_fault() -> None:
    policy = Patterns(patterns={"slow": r"(?:x|xx|x)+[yw]$"})
    delivered = deliver("x" * 40, loaded(policy), step=40)
    assert delivered.ending == ("content_filter", "one: late")


def test_a_search_is_not_late_by_the_time_of_other_threads() -> None:
    """`regex` counts processor time of the whole process: where an engine computed beside it, answers were ended."""
    pattern, in_a_busy_process = regex.compile("b"), iter([TimeoutError(), TimeoutError()])

    class Busy:
        def search(self, text: str, position: int, **options: object) -> regex.Match[str] | None:
            if (late := next(in_a_busy_process, None)) is not None:
                raise late
            return pattern.search(text, position)

    match = search(cast(regex.Pattern[str], Busy()), "abc", 0, partial=False)
    assert match is not None
    assert match.start() == 1


def test_a_line_that_comes_too_often_ends_the_answer() -> None:
    text = "intro\n" + "the same line\n" * 9 + "end"
    delivered = deliver(text, loaded(Repetition(max_times=3)), step=5)
    assert delivered.text == "intro\n" + "the same line\n" * 3
    assert delivered.ending == ("content_filter", "one: a line came 3 times")
    assert deliver("one line here\ntwo lines here\n" * 2, loaded(Repetition(max_times=3))).ending == ("stop", None)


def test_the_file_makes_policies_in_order(tmp_path: Path) -> None:
    path = tmp_path / "output.yaml"
    path.write_text(
        "policies:\n"
        "  - {use: patterns, options: {stops: true}}\n"
        "  - {use: 'prolepsis.server.output.built_in:Repetition', name: again, on_fault: open, timeout_ms: 5}\n"
    )
    first, second = read_output_policies(path)
    assert (first.name, first.on_fault, first.max_held) == ("patterns", "closed", 4096)
    assert (second.name, second.on_fault, second.timeout_ms) == ("again", "open", 5.0)
    assert isinstance(second.policy, Repetition)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("policies: [{use: nothing}]", "'nothing'.*no such policy; allowed: patterns, repetition"),
        ("policies: [{use: 'os:nothing'}]", "os:nothing"),
        ("policies: [{use: 'os:getcwd'}]", "os:getcwd"),
        ("policies: [{use: patterns, options: {patterns: {a: '('}}}]", "pattern 'a'"),
        ("policies: [{use: patterns, on_fault: maybe}]", "policies\\[0\\].on_fault is .maybe"),
        ("policies: [{use: patterns}, {use: patterns}]", "twice"),
        ("policies: [", "is not YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "output.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_output_policies(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_output_policies(tmp_path / "none.yaml")


def test_the_documented_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = Path("docs/how-to/output-policies.md").read_text()
    code = document.split("```python\n")[1].split("```")[0]
    (tmp_path / "acme_moderation.py").write_text(code)
    (tmp_path / "output.yaml").write_text(
        "policies: [{use: 'acme_moderation:make', timeout_ms: 5000, options: {service: 'http://x'}}]"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(httpx2, "post", lambda _, json: httpx2.Response(200, json={"bad": "evil" in json["text"]}))
    policies = read_output_policies(tmp_path / "output.yaml")
    delivered = deliver("All is well. Some of it is evil. The end", *policies, step=5)
    assert delivered.text == "All is well."
    assert delivered.ending == ("content_filter", "acme_moderation:make: moderation")
    assert deliver("All is well. Good", *policies).text == "All is well. Good"
