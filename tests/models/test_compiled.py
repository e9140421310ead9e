"""The compiled lean forward: same logits, requests never wait, and a failing compiler is contained."""

import pytest
import torch

from prolepsis.models.files.weights import Checkpoint, open_checkpoint
from prolepsis.models.targets.compiled import CompiledLean
from prolepsis.models.targets.lean import Dense, LeanModel, LeanShape
from prolepsis.native.build import compiler_missing
from tests.models.tiny import one, run, save_tiny


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("model")
    save_tiny(folder, "qwen3", {})
    return open_checkpoint(folder, torch.float32)


@pytest.mark.skipif(compiler_missing() is not None, reason=str(compiler_missing()))
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_buckets_give_the_same_logits(checkpoint: Checkpoint) -> None:
    shape = LeanShape.from_config(checkpoint.config)
    plain = LeanModel(checkpoint, shape, "tiny", torch.device("cpu"))
    compiled = CompiledLean(checkpoint, shape, "tiny", buckets=(4,))
    at_once = run(compiled, compiled.make_cache(1), one([5, 6, 7], 0, [0]))
    assert compiled.wait(240)
    assert compiled.fault is None
    for tokens in ([5, 6, 7], [5, 6, 7, 8], [5] * 6):
        expected = run(plain, plain.make_cache(1), one(tokens, 0, [0]))
        found = run(compiled, compiled.make_cache(1), one(tokens, 0, [0]))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(at_once, run(plain, plain.make_cache(1), one([5, 6, 7], 0, [0])), rtol=1e-4, atol=1e-4)


class FailingCompiler(CompiledLean):
    def _compile(self, bucket: int) -> Dense:
        raise RuntimeError("no such compiler")


def test_a_failing_compiler_costs_speed_only(checkpoint: Checkpoint) -> None:
    shape = LeanShape.from_config(checkpoint.config)
    failing = FailingCompiler(checkpoint, shape, "tiny")
    assert failing.wait(10)
    assert failing.fault is not None
    assert "no such compiler" in failing.fault
    plain = LeanModel(checkpoint, shape, "tiny", torch.device("cpu"))
    tokens = one([5, 6, 7], 0, [0])
    assert torch.equal(run(failing, failing.make_cache(1), tokens), run(plain, plain.make_cache(1), tokens))
