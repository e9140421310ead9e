"""Attention gives the same bits for chains, trees and single tokens, on every instruction set."""

from pathlib import Path

from prolepsis.native.processor import InstructionSet
from tests.native.programs import each_build, needs_compiler, output_of


@needs_compiler
@each_build
def test_chains_and_trees_are_as_token_by_token(instructions: InstructionSet, emulated: bool, tmp_path: Path) -> None:
    assert output_of("attention.cpp", instructions, tmp_path, emulated=emulated) == "ok"
