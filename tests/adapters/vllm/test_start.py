"""What is read of a model before vLLM loads it, what is said without vLLM, and engines that are built again."""

import json
from pathlib import Path

import pytest

from prolepsis.adapters.vllm.start import (
    CAPABILITIES,
    VllmStart,
    check,
    eos_token_ids,
    model_folder,
    plan_kv,
    start_vllm,
)
from prolepsis.core.config import EngineConfig, RemoteProposerTerms
from prolepsis.core.errors import ConfigError, EngineDead, MemoryPlanError, ModelLoadError
from prolepsis.core.events import Event, Failed, Finished
from prolepsis.core.extras import Extra
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.models.files.weights import folder_config
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import FailoverSettings, Member
from tests.adapters.vllm.table_plane import INFO, TablePlane, config
from tests.engine.models.files.byte_level import byte_level
from tests.engine.models.tiny import save_tiny
from tests.fakes import EOS, outputs, request


def test_ending_tokens_are_those_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    tokenizer = byte_level("")
    assert eos_token_ids(tmp_path, tokenizer) == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert eos_token_ids(tmp_path, tokenizer) == (2, 7)


def test_a_folder_is_served_as_it_is(tmp_path: Path) -> None:
    assert model_folder(tmp_path) == tmp_path


def test_settings_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"^strict "):
        start_vllm(EngineConfig(model="no such model", engine="vllm", strict="on"))


@pytest.mark.skipif(Extra("", "", "vllm").is_installed, reason="vLLM is installed here")
def test_a_missing_vllm_is_named_before_the_model_is_read() -> None:
    with pytest.raises(ModelLoadError, match="engine is 'vllm', which is not installed"):
        start_vllm(EngineConfig(model="no such model", engine="vllm"))


def test_the_kv_cache_of_vllm_is_planned_as_our_own(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", {"max_position_embeddings": 4096})
    model = folder_config(tmp_path)
    page = 4 * PAGE_SIZE * model.num_hidden_layers * model.num_key_value_heads * model.head_dim
    small = EngineConfig(model=str(tmp_path), max_requests=2)
    short = small.model_copy(update={"kv_memory": f"{65 * page}B"})
    assert plan_kv(small, tmp_path) == (2 * 4096 // PAGE_SIZE * page, None)
    assert plan_kv(short, tmp_path) == (65 * page, 2048)
    with pytest.raises(MemoryPlanError, match="lower max_model_len to at most 2080"):
        plan_kv(short.model_copy(update={"max_model_len": 4096}), tmp_path)


def test_the_kv_cache_of_a_model_without_attention_is_as_stated(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "num_hidden_layers": 2}))
    stated = EngineConfig(model=str(tmp_path), kv_memory="64MiB", max_model_len=512)
    assert plan_kv(stated, tmp_path) == (64 << 20, 512)
    with pytest.raises(ConfigError, match="kv_memory is 'auto'; allowed: a positive amount"):
        plan_kv(EngineConfig(model=str(tmp_path)), tmp_path)


def start_over(*planes: TablePlane) -> VllmStart:
    left = iter(planes)
    return VllmStart(config(), INFO, (EOS,), byte_level(""), lambda: next(left))


async def test_an_engine_that_ended_is_built_again_around_another_plane() -> None:
    """Three passes that fail in a row end it; the request that meets the last of them goes on in the next engine."""
    planes = TablePlane(), TablePlane()
    start = start_over(*planes)
    members = [Member(start.around(start.open_plane()), start.again)]
    client = Engines(members, settings=FailoverSettings(backoff_s=0.0))
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)

    async def ask(name: str) -> list[Event]:
        return [event async for event in client.generate(request(name, [1, 2, 3], params))]

    expected = outputs(await ask("undisturbed"))["undisturbed", 0]
    planes[0].fail_next = 3
    assert isinstance((await ask("meets two"))[-1], Failed)
    events = await ask("meets the last")
    assert isinstance(events[-1], Finished)
    assert outputs(events)["meets the last", 0] == expected
    assert planes[0].closed
    assert not planes[1].closed
    assert client.health().ready
    await client.close()


async def test_a_plane_around_which_no_engine_can_be_built_is_closed() -> None:
    plane = TablePlane(num_blocks=0)
    with pytest.raises(AssertionError):
        await start_over(plane).again()
    assert plane.closed


async def test_no_engine_is_built_beside_a_pass_that_may_still_run() -> None:
    start = start_over(TablePlane(), TablePlane())
    client = start.around(start.open_plane())
    client.watchdog.gave_up = True
    with pytest.raises(EngineDead, match="new process"):
        await start.again()
    await client.close()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("strict", "on"),
        ("forward", "native"),
        ("weights", "q4"),
        ("activations", "int8"),
        ("draft_head", "smollm2-135m-instruct"),
        ("draft_model", "some-model"),
        ("early_exit_layer", 3),
        ("chunk_limit_ms", 20.0),
        ("remote_proposer", RemoteProposerTerms(address="127.0.0.1:8600")),
        ("proposers", ("suffix", "draft_model")),
    ],
)
def test_a_setting_that_vllm_cannot_follow_is_named(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} .*allowed with engine vllm") as refused:
        check(EngineConfig.model_validate({"engine": "vllm", setting: value}))
    assert refused.value.param == setting


def test_the_defaults_are_allowed() -> None:
    check(EngineConfig(engine="vllm"))
    check(EngineConfig(engine="vllm", num_speculative_tokens=0, proposers=("draft_model",)))


def test_the_table_names_settings_that_there_are() -> None:
    assert {one.setting for one in CAPABILITIES} <= set(EngineConfig.model_fields)
