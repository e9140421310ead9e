"""C++ is compiled once for each source, compiler and instruction set; a killed build does not block the next."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from prolepsis_kernels import BuildSpec
from structlog.testing import capture_logs

from prolepsis.engine.native.build import compile_seconds, compiled, compiler_missing
from tests.waiting import ended

SOURCE = 'extern "C" const char* prolepsis_sources() { return PROLEPSIS_SOURCES; }'
needs_compiler = pytest.mark.skipif(compiler_missing() is not None, reason=f"{compiler_missing()}")


@dataclass
class Workshop:
    """A folder of sources, a cache of its own, and a compiler that counts its calls."""

    folder: Path

    @property
    def num_builds(self) -> int:
        """Links: one for each build."""
        log = self.folder / "calls"
        return log.read_text().count("-shared") if log.exists() else 0

    def build(self, *flags: str) -> Path:
        options, folder = ("-fPIC", *flags), self.folder / "sources"
        return compiled(BuildSpec("answer", "any", frozenset(), ("answer.cpp",), options, ("-shared",), folder))

    def use_compiler(self, version: str) -> None:
        script = self.folder / "compiler"
        script.write_text(
            f"""#!/bin/sh
            if [ "$1" = --version ]; then echo {version}; exit; fi
            echo "$@" >> {self.folder}/calls
            exec c++ "$@"
            """
        )
        script.chmod(0o755)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "answer.cpp").write_text(SOURCE)
    made = Workshop(tmp_path)
    made.use_compiler("1.0")
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(tmp_path / "compiler"))
    return made


@needs_compiler
def test_a_build_is_reused_when_path_changes(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = workshop.build()
    monkeypatch.setenv("PATH", f"{workshop.folder}{os.pathsep}{os.environ['PATH']}")
    assert workshop.build() == first
    assert workshop.num_builds == 1


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        lambda workshop: workshop.build("-DOTHER"),
        lambda workshop: (workshop.folder / "sources" / "answer.cpp").write_text(SOURCE + "// other"),
        lambda workshop: (workshop.folder / "sources" / "other.h").write_text("// new"),
        lambda workshop: workshop.use_compiler("2.0"),
    ],
    ids=["flags", "source", "header", "compiler"],
)
def test_another_source_compiler_or_flag_is_another_build(
    workshop: Workshop, change: Callable[[Workshop], object]
) -> None:
    first = workshop.build()
    change(workshop)
    workshop.build()
    assert workshop.num_builds == 2
    assert first.is_file()


@needs_compiler
def test_a_compile_says_what_it_is_for_and_how_long_it_took(workshop: Workshop) -> None:
    num_before = len(compile_seconds)
    with capture_logs() as logs:
        module = workshop.build()
        workshop.build()
    started, finished = logs
    assert len(compile_seconds) == num_before + 1
    assert (started["event"], finished["event"]) == ("native_compile_started", "native_compile_finished")
    assert started["file"] == finished["file"] == module.name
    assert "is missing" in started["reason"]
    assert finished["seconds"] >= 0


@needs_compiler
def test_a_killed_build_does_not_block_the_next(workshop: Workshop) -> None:
    kept = workshop.build()
    kept.unlink()
    staging = kept.parent.with_suffix(".partial")
    staging.mkdir()
    (staging / kept.name).write_bytes(b"half a library")
    assert workshop.build() == kept
    assert not staging.exists()


@needs_compiler
def test_one_of_two_simultaneous_builds_compiles(workshop: Workshop) -> None:
    threads = [threading.Thread(target=workshop.build, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert workshop.num_builds == 1


@needs_compiler
def test_a_source_that_does_not_compile_is_an_error_with_the_compilers_words(workshop: Workshop) -> None:
    (workshop.folder / "sources" / "answer.cpp").write_text("nonsense")
    with pytest.raises(RuntimeError, match="nonsense"):
        workshop.build()


@needs_compiler
def test_a_kept_build_needs_no_compiler(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.build()
    workshop.use_compiler("2.0")
    newest = workshop.build()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert workshop.build() == newest
    with pytest.raises(RuntimeError, match="no-such-compiler is not found"):
        workshop.build("-DOTHER")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler is not found" in str(compiler_missing())
