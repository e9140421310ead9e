"""Extensions are built once; what a killed build leaves behind blocks nobody."""

from pathlib import Path

import pytest

from prolepsis.native import build
from prolepsis.native.build import compiler_missing


@pytest.mark.skipif(compiler_missing() is not None, reason=f"{compiler_missing()}")
def test_a_killed_build_does_not_block_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    source = 'extern "C" int answer() { return 42; }\n#include <Python.h>\nstatic PyModuleDef d = {PyModuleDef_HEAD_INIT, "x"};\n#define CAT2(a, b) a##b\n#define CAT(a, b) CAT2(a, b)\nPyMODINIT_FUNC CAT(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&d); }\n'
    (tmp_path / "answer.cpp").write_text(source)
    first = build.load_extension("answer", ("answer.cpp",))
    directory = Path(str(first.__file__)).parent
    (directory / "lock").touch()
    again = build.load_extension("answer", ("answer.cpp",))
    assert Path(str(again.__file__)).parent == directory
