"""Workflows of CI and of a release. They do not run here: each path, command and job that they name is looked up."""

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.paths import ROOT
from tests.test_documentation import understood

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS: Mapping[str, Mapping[str, Any]] = {
    file.stem: yaml.load(file.read_text(), yaml.BaseLoader)  # `on` is a string
    for file in sorted(FOLDER.glob("*.yml"))
}
MADE = "dist"
"""The folder that a release fills."""


def steps(workflow: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, job in WORKFLOWS[workflow]["jobs"].items():
        yield from ((name, step) for step in job["steps"])


def scripts() -> Iterator[str]:
    for workflow in WORKFLOWS:
        yield from (step["run"] for _, step in steps(workflow) if "run" in step)


def commands() -> Iterator[list[str]]:
    """Yield the words of each command of the scripts; one that `$(...)` holds is a command too."""
    for script in scripts():
        for text in re.split(r"\n|;|&&", script):
            words = shlex.split(text.replace("$(", " ").replace(")", " "), comments=True)
            yield [part for word in words for part in (shlex.split(word) if " " in word else [word])]


def test_there_are_a_check_of_changes_and_a_release() -> None:
    assert WORKFLOWS.keys() == {"ci", "release"}
    assert WORKFLOWS["release"]["on"] == {"push": {"tags": ["v*"]}}
    assert ".ci/run" in scripts()


@pytest.mark.parametrize("script", list(scripts()))
def test_a_script_is_shell(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_each_path_exists() -> None:
    named = {
        word for words in commands() for word in words if re.fullmatch(r"\.?[\w-]+(/[\w.*-]+)+|[\w-]+\.(toml|md)", word)
    }
    named |= {step["with"]["package-dir"] for _, step in steps("release") if "package-dir" in step.get("with", {})}
    assert {".ci/run", "pyproject.toml", "CHANGELOG.md", "heads/*", "kernels"} <= named
    assert [path for path in named if path.partition("/")[0] != MADE and not list(ROOT.glob(path))] == []


def test_our_commands_are_understood() -> None:
    ours = [words[words.index("prolepsis") + 1 :] for words in commands() if "prolepsis" in words]
    assert ours
    for words in ours:
        understood(tuple(words))


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_jobs_wait_for_jobs_that_exist_and_actions_are_pinned(workflow: str) -> None:
    jobs = WORKFLOWS[workflow]["jobs"]
    for job in jobs.values():
        assert set(job.get("needs", ())) <= jobs.keys()
    unpinned = [
        step["uses"] for _, step in steps(workflow) if not re.search(r"@v\d+(\.\d+)*$", step.get("uses", "@v1"))
    ]
    assert not unpinned


def test_only_the_last_job_of_a_release_may_publish_and_it_waits_for_all_others() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert WORKFLOWS["release"]["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    waited, before = set[str](), set(jobs["publish"]["needs"])
    while before:
        waited |= before
        before = {name for job in before for name in jobs[job].get("needs", ())}
    assert waited == jobs.keys() - {"publish"}


def test_a_release_builds_each_distribution_of_the_repository(tmp_path: Path) -> None:
    projects = {str(file.parent.relative_to(ROOT)) for file in ROOT.glob("*/pyproject.toml")}
    heads = {file.parent for file in ROOT.glob("heads/*/pyproject.toml")}
    assert projects == {"kernels"}
    assert {path for path in ROOT.glob("heads/*") if path.is_dir()} == heads
    built = "\n".join(scripts())
    assert "for project in . heads/*; do python -m build" in built
    assert "python -m build --sdist --outdir dist kernels" in built
