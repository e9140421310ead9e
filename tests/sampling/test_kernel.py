import subprocess
import sys

WITHOUT_COMPILER = """
import torch
from prolepsis.core.sampling_params import SamplingParams
from prolepsis.sampling.sampler import Sampler, SamplingRow
sampler = Sampler(50, (0,))
assert not sampler.is_native
print(sampler.pick(torch.arange(50.0)[None], [SamplingRow(SamplingParams(top_p=0.9), 3, 0)])[0])
"""


def test_torch_serves_where_no_compiler_exists() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER],
        env={"PATH": "", "CXX": "no-such-compiler", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no C++ compiler" in done.stdout + done.stderr
    assert 0 <= int(done.stdout.splitlines()[-1]) < 50
