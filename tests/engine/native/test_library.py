"""The C face is called as the sources declare it, and what goes wrong in C is an error here."""

import re
from pathlib import Path

import pytest
from prolepsis_kernels import SOURCES

from prolepsis.engine.models.files.stored import BF16, PACKED
from prolepsis.engine.native import library as face
from prolepsis.engine.native.bandwidth import multiply_rate
from prolepsis.engine.native.choice import common_library
from prolepsis.engine.native.decoder import pick_decoder
from prolepsis.engine.native.forward import Shape
from prolepsis.engine.native.library import FUNCTIONS, Library
from tests.engine.models.kernels import NEEDS_KERNELS

DECLARED = re.compile(r"int64_t prolepsis_(\w+)\(([^{]*)\) \{")


def letter_of(parameter: str) -> str:
    kind = parameter.strip()
    if "*" in kind or kind.startswith("Parallel"):
        return "p"
    return "u" if kind.startswith("uint64_t") else "i" if kind.startswith("int64_t") else f"unknown: {kind}"


def test_the_table_says_what_the_sources_take() -> None:
    text = "".join((SOURCES / name).read_text() for name in ("decoder.cpp", "sampling.cpp", "drafts.cpp"))
    taken = {name: "".join(map(letter_of, given.split(","))) for name, given in DECLARED.findall(text)}
    assert {name: letters.removeprefix("!") for name, letters in FUNCTIONS.items()} == taken


@NEEDS_KERNELS
def test_every_function_is_there() -> None:
    common, decoder = common_library(), pick_decoder().library
    assert common is not None
    for name in FUNCTIONS:
        assert any(hasattr(part._loose, f"prolepsis_{name}") for part in (common, decoder)), name


@NEEDS_KERNELS
def test_products_on_registers_are_counted() -> None:
    multiply = pick_decoder().library.multiply_registers
    assert multiply(6) == 2 * multiply(3) > 0
    assert multiply_rate(lambda: multiply(2000), threads=2, seconds=0.01) > 1e8


@NEEDS_KERNELS
def test_products_in_cache_are_counted() -> None:
    library = pick_decoder().library
    for kind in (kind for kind in PACKED if kind != BF16):
        for rows in (1, 8, 64):
            assert library.multiply_in_cache(kind, rows, 2) == 2 * library.multiply_in_cache(kind, rows, 1)
            assert library.multiply_in_cache(kind, rows, 1) == rows * library.multiply_in_cache(kind, 1, 1)
    assert library.multiply_in_cache(12, 1, 1) % (2048 * 32) == 0
    seen = sum(range(33, 33 + 7))  # by 7 tokens after 32
    assert library.attend_in_cache(64, 3, 7, 32, 5) == 5 * seen * 3 * 2 * 64


@NEEDS_KERNELS
def test_another_version_of_the_face_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = pick_decoder().path
    monkeypatch.setattr(face, "FACE", face.FACE + 1)
    with pytest.raises(RuntimeError, match=rf"has version {face.FACE - 1} of the face; allowed: {face.FACE}"):
        Library(path)


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "common.so").write_bytes(b"text")
    with pytest.raises(OSError, match=r"common\.so"):
        Library(tmp_path / "common.so")


@NEEDS_KERNELS
def test_what_c_refuses_is_an_error_with_its_words() -> None:
    library = pick_decoder().library
    with pytest.raises(RuntimeError, match="takes widths that are multiples of 32"):
        library.make(Shape(33, 1, 1, 32, 32, 32, 1e-5, 1.0, 1.0, 0.0), 1, int8=True)
    decoder = library.make(Shape(32, 1, 1, 32, 32, 32, 1e-5, 1.0, 1.0, 0.0), 1, int8=True)
    with pytest.raises(RuntimeError, match="an exit after 1 layers; allowed: 1 to 0"):
        decoder.make_exit(1, 32)


@NEEDS_KERNELS
def test_a_name_that_the_face_lacks_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="forwards"):
        pick_decoder().library.forwards(1)
