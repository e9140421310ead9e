"""What runs of a kernel: the fastest that this processor runs, that can be had and is right; prebuilt ones first."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prolepsis_kernels import BuildSpec, declared
from structlog.testing import capture_logs

from prolepsis.core.errors import ConfigError
from prolepsis.engine.native import choice
from prolepsis.engine.native.build import compiled
from prolepsis.engine.native.choice import ChosenKernel, Find, choose, prebuilt, sources_of, ways
from tests.engine.native.programs import needs_compiler

BEST, GOOD = (BuildSpec(name, "any", frozenset(), ("kernel.cpp",), (), ()) for name in ("best", "good"))
LACKED = replace(BEST, name="lacked", needs=frozenset({"one", "two"}))
SOURCE = 'extern "C" const char* prolepsis_sources() { return PROLEPSIS_SOURCES; }'


def way(there: Collection[BuildSpec], error: Exception, origin: str) -> Find:
    def find(spec: BuildSpec) -> Path:
        if spec not in there:
            raise error
        return Path(origin) / spec.name

    return find


def chosen(
    prebuilt: Collection[BuildSpec], compiled: Collection[BuildSpec], *, wrong: Collection[str] = ()
) -> ChosenKernel[str]:
    """Return what is chosen where these can be had, and the named ones, as `origin/name`, compute something else."""
    found: Mapping[str, Find] = {
        "prebuilt": way(prebuilt, FileNotFoundError("not in this installation"), "prebuilt"),
        "compiled here": way(compiled, RuntimeError("no C++ compiler"), "compiled"),
    }
    return choose((LACKED, BEST, GOOD), found, str, lambda file: "it disagrees" if file in wrong else None)


def test_prebuilt_before_compiled_and_a_better_one_compiled_before_a_lesser_one_prebuilt() -> None:
    both = (BEST, GOOD)
    assert chosen(both, both).library == "prebuilt/best"
    assert chosen((GOOD,), both).library == "compiled/best"
    assert chosen((GOOD,), ()).library == "prebuilt/good"
    assert chosen((), (GOOD,)).library == "compiled/good"


def test_one_that_computes_something_else_is_passed_over() -> None:
    both = (BEST, GOOD)
    assert chosen(both, both, wrong=["prebuilt/best"]).library == "compiled/best"
    assert chosen(both, (), wrong=["prebuilt/best"]).library == "prebuilt/good"
    with pytest.raises(RuntimeError, match=r"best, prebuilt: it disagrees; .*good, compiled here: no C"):
        chosen(both, (), wrong=["prebuilt/best", "prebuilt/good"])


def test_a_choice_says_why_no_better_one_runs() -> None:
    with capture_logs() as logs:
        found = chosen((GOOD,), ())
    assert found.describe() == (
        "good, prebuilt (not lacked: this processor lacks one, two; best, prebuilt: not in this installation; "
        "best, compiled here: no C++ compiler)"
    )
    assert [log["kernel"] for log in logs] == ["best"], "what is missing by design is no warning"


def test_a_processor_without_kernels_is_named() -> None:
    with pytest.raises(RuntimeError, match="there are no kernels for"):
        choose((), {}, str, lambda _: None)


@needs_compiler
def test_a_library_of_other_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernel.cpp").write_text(SOURCE)
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path / "cache"))
    spec = replace(GOOD, folder=tmp_path, options=("-fPIC",), links=("-shared",))
    made = compiled(spec)
    monkeypatch.setattr(choice, "LIBRARIES", made.parent)
    assert sources_of(made) == spec.sources_hash
    assert prebuilt(spec) == made
    (tmp_path / "new.h").write_text("// later")
    with pytest.raises(RuntimeError, match=r"good\.so is stale: made of sources"):
        prebuilt(spec)


def test_a_library_that_is_not_there_is_no_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "LIBRARIES", tmp_path)
    with pytest.raises(FileNotFoundError, match="not in this installation"):
        prebuilt(GOOD)


def test_the_environment_may_ask_for_compiled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROLEPSIS_NATIVE", raising=False)
    assert list(ways()) == ["prebuilt", "compiled here"]
    monkeypatch.setenv("PROLEPSIS_NATIVE", "build")
    assert list(ways()) == ["compiled here"]
    monkeypatch.setenv("PROLEPSIS_NATIVE", "gcc")
    with pytest.raises(ConfigError, match="PROLEPSIS_NATIVE is 'gcc'; allowed: build"):
        ways()


def test_files_of_each_library_are_there_and_variants_stand_by_what_they_need() -> None:
    for spec in declared():
        assert all((spec.folder / file).is_file() for file in spec.files), spec.name
    needs = {spec.name: spec.needs for spec in declared()}
    assert needs["amx_bf16"] > needs["avx512_bf16"] > needs["avx512_vnni"]
    assert needs["avx_vnni"] > needs["avx2"]
    assert needs["common"] == frozenset()
