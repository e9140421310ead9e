"""Heads of public layouts through the whole engine: right ones are accepted, and none changes a token."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
import torch

from prolepsis.core.plan import SpecPlan
from prolepsis.engine.build import assemble
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.exchange import import_head
from prolepsis.engine.models.heads.registry import open_head
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.public_heads import NUM_MEDUSA, PublicMedusa, public_head, public_medusa
from tests.engine.models.tiny import random_model
from tests.exact.oracle import CONFIG, PROMPT, ask, at_any_price, plain, serve
from tests.exact.oracle import target as random_target
from tests.fakes import Letters, outputs, terminals

CASES = [
    *((kind, "lean") for kind in ("eagle", "qwen", "deepseek", "medusa")),
    *(pytest.param(kind, "native", marks=NEEDS_KERNELS) for kind in ("eagle", "medusa")),
]


@cache
def counting(forward: str) -> LoadedModel:
    """A target that says x + 1 after x: its layers add nothing, and its output head is its embedding, moved by one."""
    model = random_model("llama", {"head_dim": 32})
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding.div_(embedding.pow(2).mean(1, keepdim=True).sqrt())
        model.get_output_embeddings().weight.copy_(embedding.roll(1, 0))
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
            elif name == "model.norm.weight":
                parameter.fill_(1.0)
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        checkpoint = open_checkpoint(Path(folder))
        shape = LeanShape.from_config(checkpoint.config)
        if forward == "native":
            loaded: NativeModel | LeanModel = NativeModel(checkpoint, shape, "counting", 1)
        else:
            loaded = LeanModel(checkpoint, shape, "counting", torch.device("cpu"))
    return LoadedModel(loaded, cast(ModelTokenizer, Letters()), "counting", "counting", "counting")


def save_right(kind: str, target: LoadedModel, folder: Path) -> Path:
    """A head that predicts what `counting` says: from the embedding alone, and Medusa from rows moved further."""
    assert isinstance(target.model, NativeModel | LeanModel)
    if kind == "medusa":
        blocks = [(torch.zeros(64, 64), torch.zeros(64)) for _ in range(NUM_MEDUSA)]
        outputs_of_heads = [target.model.output_head().roll(1 + head, 0) for head in range(NUM_MEDUSA)]
        return PublicMedusa(blocks, outputs_of_heads).save(folder)
    public = public_head(kind)
    for name, tensor in public.tensors.items():
        if "norm" in name:
            tensor.fill_(0.0 if kind == "qwen" else 1.0)
        elif "o_proj" in name or "down_proj" in name or "bias" in name:
            tensor.zero_()
        elif name.endswith(("fc.weight", "eh_proj.weight")):
            tensor.copy_(torch.eye(64, 128))
    return public.save(folder)


@pytest.mark.parametrize(("kind", "forward"), CASES)
def test_a_right_head_of_each_layout_is_accepted(kind: str, forward: str, tmp_path: Path) -> None:
    target = counting(forward)
    entry = import_head(save_right(kind, target, tmp_path / "given"), "right", tmp_path / "models")
    engine = at_any_price(assemble(CONFIG, target, head=open_head(entry, target)))
    events = serve(engine, ask("greedy"), plan=SpecPlan(fixed_depth=3))
    assert outputs(events)["greedy", 0] == [(PROMPT[-1] + 1 + i) % 160 for i in range(70)]
    (end,) = terminals(events).values()
    assert end.stats.num_accepted > 45, "all that was drafted: three tokens of four"


@NEEDS_KERNELS
@pytest.mark.parametrize("kind", ["eagle", "deepseek", "medusa"])
def test_a_random_head_changes_nothing(kind: str, tmp_path: Path) -> None:
    public = public_medusa() if kind == "medusa" else public_head(kind)
    entry = import_head(public.save(tmp_path / "given"), "random", tmp_path / "models")
    target = random_target()
    engine = at_any_price(assemble(CONFIG, target, head=open_head(entry, target)))
    events = serve(engine, ask("greedy"), ask("truncated"), plan=SpecPlan(fixed_depth=3))
    for name, end in zip(("greedy", "truncated"), terminals(events).values(), strict=True):
        assert outputs(events)[name, 0] == plain(name)[0]
        assert end.stats.num_draft_tokens > 20
