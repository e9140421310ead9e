"""Draft heads of public layouts: imported and run over pages, against layers that are not ours."""

from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.engine.models.heads.block import BlockHead
from prolepsis.engine.models.heads.exchange import import_head
from prolepsis.engine.models.heads.foreign import HeadTensors
from prolepsis.engine.models.heads.medusa import MedusaHead
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.engine.models.targets.lean import LeanModel, rms_norm
from prolepsis.engine.models.targets.lean_shape import LeanShape
from tests.engine.models.public_heads import BLOCKS, NUM_MEDUSA, public_head, public_medusa
from tests.engine.models.tiny import close, rounded, tokens

LENGTH = 45


@cache
def target() -> LeanModel:
    with rounded("llama", {}) as (_, checkpoint):
        return LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), "target", torch.device("cpu"))


def features() -> Tensor:  # [LENGTH, hidden]: of the token before each
    drawn = torch.randn(LENGTH, 64, generator=torch.Generator().manual_seed(3))
    drawn[0] = 0.0
    return drawn.bfloat16()


def normed(given: Tensor) -> Tensor:
    return rms_norm(given.float(), target().final_norm, target().shape.eps)


def opened(folder: Path, root: Path, kind: type[BlockHead | MedusaHead]) -> BlockHead | MedusaHead:
    entry = import_head(folder, "public", root)
    return kind(entry.label, entry.config, HeadTensors(entry.folder, "", torch.empty(0)), target())


@pytest.mark.parametrize("kind", BLOCKS)
def test_chains_and_drafted_trees_are_those_of_the_reference(kind: str, tmp_path: Path) -> None:
    public = public_head(kind)
    head = opened(public.save(tmp_path / "given"), tmp_path / "models", BlockHead)
    assert isinstance(head, BlockHead)
    ids, embedding = tokens(LENGTH, 1), target().ends.embedding
    f = normed(features())
    states = public.states(embedding[ids[1:]], f[1:])  # without slot 0, as such heads are trained
    cache, found = head.make_cache(3), []
    for first, end in ((0, 20), (20, 21), (21, LENGTH)):
        chunk = SequenceInput(ids[first:end], first, [2, 0], keep_last=end - first)
        found.append(head.logits(pack([chunk]), cache, features()[first:end], None))
    close(torch.cat([after for _, after in found])[1:], states, 1e-4)
    close(torch.cat([logits for logits, _ in found])[1:], F.linear(states, target().output_head()), 1e-4)

    drafted, parents = [5, 9, 11, 7], [-1, 0, -1, 2]  # two chains: 5 9 and 11 7
    given = {-1: states[-1]}
    for node, parent in enumerate(parents):
        path = [parent, node] if parent >= 0 else [node]
        chain_f = torch.cat([f[1:], torch.stack([given[parents[i]] for i in path])])
        given[node] = public.states(embedding[[*ids[1:], *(drafted[i] for i in path)]], chain_f)[-1]
    batch = pack([SequenceInput(drafted, LENGTH, [2, 0], parents, keep_last=4)])
    logits, after = head.logits(batch, cache, None, torch.stack([given[p] for p in parents]))
    expected = torch.stack([given[node] for node in range(4)])
    close(after, expected, 1e-4)
    close(logits, F.linear(expected, target().output_head()), 1e-4)


@pytest.mark.parametrize("kind", ["medusa", "medusa-vllm"])
def test_medusa_heads_are_those_of_the_reference(kind: str, tmp_path: Path) -> None:
    public = public_medusa()
    head = opened(public.save(tmp_path / "given", kind), tmp_path / "models", MedusaHead)
    assert isinstance(head, MedusaHead)
    batch = pack([SequenceInput(tokens(LENGTH, 1), 0, [0, 1], keep_last=2)])
    found = head.look_ahead(batch, head.make_cache(2), features(), 5)
    f = normed(features()[-2:])
    expected = public.logits(f, 0).log_softmax(-1).topk(5)
    assert torch.equal(found.first.tokens, expected.indices)
    assert torch.allclose(found.first.logprobs, expected.values, atol=1e-4)
    places = [2 * level + row for level in range(NUM_MEDUSA - 1) for row in range(2)]
    ids, logprobs = head.follow(found, places, [3] * len(places), 5)
    for place, row, chances in zip(places, ids, logprobs, strict=True):
        best = public.logits(f[place % 2], 1 + place // 2).topk(64).values.log_softmax(-1)[:5]
        assert torch.equal(row, public.logits(f[place % 2], 1 + place // 2).topk(5).indices)
        assert torch.allclose(chances, best, atol=1e-4)
