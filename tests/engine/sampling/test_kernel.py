import subprocess
import sys

import pytest
import torch

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.sampling.noise import native_kernel
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow
from tests.engine.models.kernels import team

WITHOUT_COMPILER = """
import torch
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.sampling.noise import native_kernel
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow
sampler = Sampler(50, (0,))
assert native_kernel() is None
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


def test_threads_share_rows_without_changing_tokens() -> None:
    if native_kernel() is None:
        pytest.skip("no compiled sampling kernel on this machine")
    logits = torch.randn(23, 500, generator=torch.Generator().manual_seed(5))
    rows = [SamplingRow(SamplingParams(top_p=0.9, seed=i), 100 + i, i) for i in range(23)]
    alone = [Sampler(500, ()).pick(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    for threads in (1, 2, 3, 2):
        assert Sampler(500, (), team=team(threads)).pick(logits, rows) == alone
