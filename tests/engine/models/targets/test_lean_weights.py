import subprocess
import sys
from pathlib import Path

from tests.engine.models.tiny import save_tiny

PROGRAM = """
import sys
from pathlib import Path
from prolepsis.engine.models.files.source import open_model
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.lean_weights import check_names

checkpoint = open_checkpoint(open_model(Path(sys.argv[1])))
check_names(checkpoint, LeanShape.from_config(checkpoint.config))
print([name for name in ("torch._dynamo", "transformers") if name in sys.modules])
"""


def test_names_are_checked_without_torchs_compiler(tmp_path: Path) -> None:
    """It takes seconds to import, and a start needs nothing of it; a family with biases joins vectors."""
    save_tiny(tmp_path, "qwen2", {"head_dim": None})
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
