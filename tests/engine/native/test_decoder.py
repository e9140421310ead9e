"""The decoder is the fastest build that the compiler can make and that is right on this processor."""

from collections.abc import Callable
from types import ModuleType

import pytest

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.native import decoder
from prolepsis.engine.native.processor import AVX2_FMA, AVX_VNNI, InstructionSet

choose = decoder.pick_decoder.__wrapped__  # past the cache


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that says which sets a processor with AVX-VNNI builds, and which of these are right."""

    def say(built: set[InstructionSet], right: set[InstructionSet]) -> None:
        def load(instructions: InstructionSet) -> ModuleType:
            if instructions not in built:
                raise ModelLoadError(f"unrecognized option of {instructions.name}")
            return ModuleType(instructions.name)

        names = {instructions.name for instructions in right}
        monkeypatch.setattr(decoder, "load_decoder", load)
        monkeypatch.setattr(decoder, "agrees_with_torch", lambda module: module.__name__ in names)

    monkeypatch.setattr(decoder, "instruction_sets", lambda _: (AVX_VNNI, AVX2_FMA))
    monkeypatch.setattr(decoder, "compiler_missing", lambda: None)
    return say


def test_the_fastest_that_builds_and_is_right(builds: Callable[..., None]) -> None:
    both = {AVX_VNNI, AVX2_FMA}
    builds(both, both)
    assert choose()[1] == AVX_VNNI
    builds({AVX2_FMA}, both)
    assert choose()[1] == AVX2_FMA
    builds(both, {AVX2_FMA})
    assert choose()[1] == AVX2_FMA


@pytest.mark.parametrize(
    ("built", "says"), [(set(), "unrecognized option of avx2"), ({AVX_VNNI, AVX2_FMA}, "disagree with torch")]
)
def test_none_builds_or_is_right(builds: Callable[..., None], built: set[InstructionSet], says: str) -> None:
    builds(built, set())
    with pytest.raises(ModelLoadError, match=says):
        choose()


def test_no_compiler_is_said_once(builds: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    builds(set(), set())
    monkeypatch.setattr(decoder, "compiler_missing", lambda: "no C++ compiler")
    with pytest.raises(ModelLoadError, match=r"no C\+\+ compiler"):
        choose()
