"""The padded step that CUDA captures: its layout and logits on the CPU, its replay where there is CUDA."""

from pathlib import Path

import pytest
import torch

from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.protocol import Batch, SequenceInput, pack
from prolepsis.engine.models.targets.graphs import GraphedLean, GraphShape, lay_out
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from tests.engine.models.tiny import GEMMA, WINDOWS, save_tiny

MODELS: list[tuple[str, dict[str, object]]] = [
    ("llama", {}),
    ("gemma3_text", {**WINDOWS, **GEMMA, "sliding_window": 9}),
]


@pytest.fixture(scope="module", params=MODELS, ids=["llama", "windows"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp("model")
    save_tiny(folder, *request.param)
    return open_checkpoint(folder, torch.float32)


def steps() -> list[Batch]:
    """A prefill, a decode and a tree beside a chain, of three sequences."""
    text = list(range(3, 60))
    return [
        pack([SequenceInput(text[:20], 0, [2]), SequenceInput(text[5:36], 0, [4])]),
        pack([SequenceInput([7], 20, [2]), SequenceInput([8], 31, [4]), SequenceInput([9], 0, [1])]),
        pack(
            [
                SequenceInput([5, 6, 7], 21, [2], parents=[-1, 0, 0], keep_last=3),
                SequenceInput([5, 6], 32, [4, 3], keep_last=2),
            ]
        ),
    ]


def test_the_padded_step_gives_the_plain_forwards_logits(checkpoint: Checkpoint) -> None:
    shape, cpu = LeanShape.from_config(checkpoint.config), torch.device("cpu")
    plain, graphed = LeanModel(checkpoint, shape, "tiny", cpu), GraphedLean(checkpoint, shape, "tiny", cpu)
    ours, theirs = graphed.make_cache(5), plain.make_cache(5)
    for batch in steps():
        bucket = GraphShape.of(batch)
        assert bucket is not None
        inputs, rows = lay_out(batch, bucket, ours.num_pages, graphed.windows)
        found = graphed.static_step(inputs, ours)
        assert not found.isnan().any()
        torch.testing.assert_close(found[rows], plain.forward(batch, theirs), rtol=1e-4, atol=1e-4)
    for page in (1, 2, 3, 4):
        torch.testing.assert_close(ours.keys[0][page], theirs.keys[0][page], rtol=1e-4, atol=1e-4)


def test_buckets_are_powers_of_two_and_bounded() -> None:
    assert [GraphShape.of(batch) for batch in steps()] == [
        GraphShape(2, 32, 1),
        GraphShape(4, 1, 1),
        GraphShape(2, 4, 2),
    ]
    assert GraphShape.of(pack([SequenceInput([1] * 33, 0, [0, 1])])) is None
    assert GraphShape.of(pack([SequenceInput([1] * 32, 0, [i]) for i in range(17)])) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_replay_gives_the_plain_forwards_logits(checkpoint: Checkpoint) -> None:
    shape, cuda = LeanShape.from_config(checkpoint.config), torch.device("cuda")
    plain, graphed = LeanModel(checkpoint, shape, "tiny", cuda), GraphedLean(checkpoint, shape, "tiny", cuda)
    ours, theirs = graphed.make_cache(5), plain.make_cache(5)
    for _ in range(2):
        for batch in steps():
            found, expected = graphed.forward(batch, ours), plain.forward(batch, theirs)
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
