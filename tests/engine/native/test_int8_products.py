"""Products in 8 bits have the same bits on every instruction set, for any number of rows and every stored format."""

from prolepsis.engine.native.processor import InstructionSet
from tests.engine.native.programs import each_build, needs_compiler, output_of


@needs_compiler
@each_build
def test_every_row_count_is_a_plain_sum(instructions: InstructionSet, emulated: bool) -> None:
    assert output_of("int8_product.cpp", instructions, emulated=emulated) == "ok"
