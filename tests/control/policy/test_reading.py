"""Errors name file, line and path, given and allowed; a file is taken over as a whole, or not at all."""

import os
from pathlib import Path

import pytest

from prolepsis.control.policy.check import InvalidPolicy, Known, parse_policy, read_policy
from prolepsis.control.policy.source import PolicyFile
from prolepsis.core.errors import ConfigError
from prolepsis.core.yaml_document import read_yaml


def said(text: str) -> list[str]:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(text, "p.yaml")
    return [finding.in_file("p.yaml") for finding in caught.value.findings]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rulez: []", "p.yaml:1: rulez is unknown; did you mean 'rules'?"),
        (
            "rules:\n- name: a\n  match:\n    promt_tokens: 3\n",
            "p.yaml:4: rules[0].match.promt_tokens is unknown; did you mean 'prompt_tokens'?",
        ),
        (
            "rules:\n- {name: a, match: {headers: {X-App: {prefx: a}}}}",
            "p.yaml:2: rules[0].match.headers.X-App.prefx is unknown; did you mean 'prefix'?",
        ),
        (
            "rules:\n- name: a\n  match:\n    time:\n      hour: 08:00-09:00\n",
            "p.yaml:5: rules[0].match.time.hour is unknown; did you mean 'hours'?",
        ),
        ("rules: [{name: a}]", "p.yaml:1: rules[0].match is missing"),
        ("default: {mode: onn}", "p.yaml:1: default.mode is 'onn'; allowed: off, shadow, on"),
        ("default: {mode: true}", "p.yaml:1: default.mode is true; allowed: off, shadow, on"),
        ("default: {pinned: yes}", "p.yaml:1: default.pinned is 'yes'; allowed: true, false"),
        (
            "default: {num_speculative_tokens: 0}",
            "p.yaml:1: default.num_speculative_tokens is 0; allowed: greater than or equal to 1",
        ),
        ("version: 1.10", "p.yaml:1: version is 1.1; allowed: text, in quotes"),
        ("rules: {a: 1}", "p.yaml:1: rules is {'a': 1}; allowed: a list"),
        ("- a", "p.yaml:1: is ['a']; allowed: a mapping"),
        (
            "",
            "p.yaml: is empty; allowed: version, description, owner, never_learn, never_record, traffic_classes, "
            "default, rules",
        ),
        ("a: 1\na: 2", "p.yaml: is not YAML: line 2: key 'a' is given twice"),
        ("rules: &a [*a]", "p.yaml: is not YAML: its aliases stand for too much; allowed: 10000 values in all"),
    ],
)
def test_one_problem(text: str, message: str) -> None:
    assert said(text) == [message]


def test_all_problems_are_said_at_once_in_the_order_of_the_file() -> None:
    text = "rules:\n- name: x y\n  match: {tenant: [], tools: 1}\n- 7\ndefault: {use: chatt}\n"
    assert [line.partition(" is")[0] for line in said(text)] == [
        "p.yaml:2: rules[0].name",
        "p.yaml:3: rules[0].match.tenant",
        "p.yaml:3: rules[0].match.tools",
        "p.yaml:4: rules[1]",
        "p.yaml:5: default.use",
    ]
    with pytest.raises(ConfigError, match="and 4 more"):
        parse_policy(text, "p.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read: No such file"):
        read_policy(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"description: \xe4\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml is not UTF-8"):
        read_policy(tmp_path / "latin.yaml")


def test_words_are_texts_and_anchors_are_shared() -> None:
    text = "base: &b {mode: off, at: 18:00}\nlist:\n- <<: *b\n  mode: on\n  lang: [no, y, 010, 2026-11-21, 1e3, ~]\n"
    document = read_yaml(text)
    assert document.value == {
        "base": {"mode": "off", "at": "18:00"},
        "list": [{"mode": "on", "at": "18:00", "lang": ["no", "y", "010", "2026-11-21", 1000.0, None]}],
    }
    paths: list[list[int | str]] = [[], ["list", 0, "mode"], ["list", 0, "lang", 2], ["list", 0, "none"]]
    assert [document.line(path) for path in paths] == [1, 4, 5, 3]


BILLION_LAUGHS = "l0: &l0 [ha, ha]\n" + "".join(f"l{i}: &l{i} [{f'*l{i - 1}, ' * 9}]\n" for i in range(1, 12))


def test_aliases_stand_for_what_they_name() -> None:
    document = read_yaml("a: &a {b: [1, 2]}\nc: [*a, *a]\nd:\n  <<: *a\n")
    assert document.value == {"a": {"b": [1, 2]}, "c": [{"b": [1, 2]}] * 2, "d": {"b": [1, 2]}}


@pytest.mark.parametrize(
    "text",
    [
        BILLION_LAUGHS,
        "a: &a [*a]",
        "a: [",
        "\x00",
        "[" * 5000,
        "? [a]\n: 1",
        "a: !!python/name:os.system x",
        "a\n---\nb",
    ],
)
def test_hostile_yaml_is_an_error_and_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_yaml(text)


OFF, ON, BAD = "default: {mode: off}\n", "default: {mode: on}\n", "default: {mode: maybe}\n"


def write(path: Path, text: str) -> None:
    """Replace the file, as editors and configuration management do."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def mode(file: PolicyFile) -> str:
    return file.policy.default_terms.mode


def test_a_good_edit_is_taken_and_a_bad_one_leaves_the_last_good(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, OFF)
    file = PolicyFile(path)
    assert not file.poll().changed
    assert mode(file) == "off"

    write(path, ON)
    assert file.poll().changed
    assert mode(file) == "on"

    write(path, BAD)
    bad = file.poll()
    assert not bad.changed
    assert "policy.yaml:1: default.mode is 'maybe'" in str(bad.refused) == file.fault
    assert mode(file) == "on"
    assert file.poll().refused is None  # said once
    assert file.reload().refused is None

    path.unlink()
    assert "No such file" in str(file.poll().refused)
    assert file.poll().refused is None
    assert mode(file) == "on"

    write(path, OFF)
    assert file.poll().changed
    assert (mode(file), file.fault) == ("off", "")


def test_an_edit_without_effect_is_not_a_change(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, OFF)
    file = PolicyFile(path)
    write(path, f"# words\n{OFF}")
    assert not file.poll().changed
    write(path, f"version: 2\n{OFF}")
    assert file.poll().changed
    assert file.policy.version == "2"


def test_an_edit_of_equal_times_is_seen_when_told(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(ON + " " * (len(OFF) - len(ON)))
    file = PolicyFile(path)
    path.write_text(OFF)
    assert file.reload().changed
    assert mode(file) == "off"


def test_findings_refuse_too(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, "default: {mode: on, proposers: [sufix]}\n")
    PolicyFile(path)
    with pytest.raises(ConfigError, match="did you mean 'suffix'"):
        PolicyFile(path, Known(proposers=("suffix",)))


def test_without_a_file_there_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        PolicyFile(tmp_path / "none.yaml")
