"""Products in 8 bits have the same bits on every instruction set, for any number of rows."""

from pathlib import Path

from prolepsis.native.processor import InstructionSet
from tests.native.programs import each_build, needs_compiler, output_of


@needs_compiler
@each_build
def test_every_row_count_is_a_plain_sum(instructions: InstructionSet, emulated: bool, tmp_path: Path) -> None:
    assert output_of("eight_bit_product.cpp", instructions, tmp_path, emulated=emulated) == "ok"
