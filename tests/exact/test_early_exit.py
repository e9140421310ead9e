"""Early exit through the whole engine: its drafts share the target's cache and change no token of anybody."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
import torch

from prolepsis.core.errors import ConfigError
from prolepsis.core.events import Event
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.build import assemble
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.step import Engine
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.tiny import save_tiny
from tests.exact.oracle import CONFIG as TINY_CONFIG
from tests.exact.oracle import PARAMS, ask, at_any_price
from tests.exact.oracle import serve as serve_all
from tests.fakes import Letters, outputs, terminals

pytestmark = NEEDS_KERNELS

CONFIG = TINY_CONFIG.model_copy(update={"kv_memory": "1MiB"})
BESIDE: dict[str, tuple[str, ...]] = {"alone": (), "merged": ("prompt_lookup", "suffix")}


@cache
def target() -> LoadedModel:
    """A random model that mostly says one of the tokens its exits know, and whose third layer changes little."""
    with TemporaryDirectory() as folder:
        model = save_tiny(Path(folder), "llama", {"head_dim": 32, "num_hidden_layers": 3})
        weights = dict(model.named_parameters())
        with torch.no_grad():
            weights["lm_head.weight"][:32] *= 4.0
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                weights[f"model.layers.2.{name}.weight"] *= 0.2
        model.save_pretrained(folder)
        checkpoint = open_checkpoint(Path(folder), torch.bfloat16)
        native = NativeModel(checkpoint, LeanShape.from_config(checkpoint.config), "tiny", threads=1)
    return LoadedModel(native, cast(ModelTokenizer, Letters()), "tiny", "tiny", "tiny")


def with_exit(num_layers: int = 2, **changes: object) -> Engine:
    return at_any_price(assemble(CONFIG.model_copy(update={"early_exit_layer": num_layers, **changes}), target()))


def serve(engine: Engine, *sources: GenerateRequest, plan: SpecPlan | None = None) -> list[Event]:
    events = serve_all(engine, *sources, plan=plan)
    assert not any(engine.speculation.proposers.failures.values())
    return events


@cache
def plain(name: str, n: int = 1) -> list[list[int]]:
    texts = outputs(serve(assemble(CONFIG, target()), ask(name, n=n)))
    return [texts[name, i] for i in range(n)]


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("depth", [1, 4, 16, None])
def test_drafts_of_any_depth_change_nothing(num_layers: int, depth: int | None) -> None:
    for name in PARAMS:
        events = serve(with_exit(num_layers), ask(name), plan=SpecPlan(fixed_depth=depth))
        assert outputs(events)[name, 0] == plain(name)[0]


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_drafts_are_accepted_where_the_layers_above_change_little(name: str) -> None:
    engine = with_exit()
    (end,) = terminals(serve(engine, ask(name), plan=SpecPlan(fixed_depth=3))).values()
    assert engine.info.proposers == ("early_exit",)
    assert end.stats.num_accepted > 15


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("depth", [4, None])
def test_any_mix_of_neighbours_and_of_proposers_changes_nothing(beside: str, depth: int | None) -> None:
    sources = [ask(name) for name in PARAMS]
    sources += [ask("sampled", f"other {i}", prompt=[9 + i] * (10 * i + 1)) for i in range(3)]
    texts = outputs(serve(with_exit(proposers=BESIDE[beside]), *sources, plan=SpecPlan(fixed_depth=depth)))
    assert {name: texts[name, 0] for name in PARAMS} == {name: plain(name)[0] for name in PARAMS}


def test_sequences_of_one_request_that_share_pages_change_nothing() -> None:
    for name in ("greedy", "sampled"):
        texts = outputs(serve(with_exit(), ask(name, n=3), plan=SpecPlan(fixed_depth=5)))
        assert [texts[name, i] for i in range(3)] == plain(name, 3)


def test_preemption_changes_nothing() -> None:
    engine = with_exit(kv_memory="288KiB", prefix_cache=False)
    events = serve(engine, *(ask(name) for name in PARAMS), plan=SpecPlan(fixed_depth=4))
    assert {name: outputs(events)[name, 0] for name in PARAMS} == {name: plain(name)[0] for name in PARAMS}
    assert sum(end.stats.num_preemptions for end in terminals(events).values()) > 0


def test_prefix_hits_need_no_catching_up() -> None:
    engine = with_exit()
    for name in ("greedy", "greedy", "sampled"):
        events = serve(engine, ask(name), plan=SpecPlan(fixed_depth=4))
        (end,) = terminals(events).values()
        assert outputs(events)[name, 0] == plain(name)[0]
        assert end.stats.num_accepted > 15
    assert end.stats.num_cached_tokens >= 64


def test_a_layer_must_be_named() -> None:
    named = CONFIG.model_copy(update={"proposers": ("early_exit",)})
    with pytest.raises(ConfigError, match="early_exit_layer is not set"):
        assemble(named, target())
    assert assemble(CONFIG, target()).info.proposers == ()
