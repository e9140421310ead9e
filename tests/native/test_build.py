"""Extensions are built once; what a killed build leaves behind blocks nobody."""

from pathlib import Path

import pytest

from prolepsis.native import build
from prolepsis.native.build import compiler_missing

SOURCE = """
#include <Python.h>
static PyModuleDef answer = {PyModuleDef_HEAD_INIT, "answer"};
#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&answer); }
"""


@pytest.mark.skipif(compiler_missing() is not None, reason=f"{compiler_missing()}")
def test_a_killed_build_does_not_block_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    (tmp_path / "answer.cpp").write_text(SOURCE)
    first = build.load_extension("answer", ("answer.cpp",))
    directory = Path(str(first.__file__)).parent
    (directory / "lock").touch()
    again = build.load_extension("answer", ("answer.cpp",))
    assert Path(str(again.__file__)).parent == directory
