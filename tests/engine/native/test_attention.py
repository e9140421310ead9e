"""Attention gives the same bits for chains, trees and single tokens, on every instruction set."""

from prolepsis.engine.native.processor import InstructionSet
from tests.engine.native.programs import each_build, needs_compiler, output_of


@needs_compiler
@each_build
def test_chains_and_trees_are_as_token_by_token(instructions: InstructionSet, emulated: bool) -> None:
    assert output_of("attention.cpp", instructions, emulated=emulated) == "ok"
