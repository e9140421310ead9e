"""An engine from a configuration: what is chosen, what is refused, and that what comes out serves."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from prolepsis.core.config import EngineConfig, RemoteProposerTerms
from prolepsis.core.errors import ConfigError, MemoryPlanError
from prolepsis.core.files import cache_directory
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.build import assemble, build_engine, proposer_names
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.remote.link import RemoteAddress
from prolepsis.engine.kv.memory import MemoryUse
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.native.processor import default_threads
from prolepsis.engine.profile import curve_file
from prolepsis.engine.runner import Runner
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.start import start_engine
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.engine.watchdog import processor_clock
from tests.fakes import Letters, TableModel, outputs, reference, request, run


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = cache_directory() / "native"
    native.mkdir(parents=True, exist_ok=True)
    (tmp_path / "native").symlink_to(native)  # compiling the kernels again takes half a minute
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path))
    kept = curve_file("fp_table", default_threads(), "")
    kept.parent.mkdir()
    kept.write_text(flat_cost(1e-3, 1e-5).to_json())  # profiling a model written in Python takes seconds


def loaded(model: TableModel | None = None) -> LoadedModel:
    model = model or TableModel()
    model.info = replace(model.info, max_positions=160)
    return LoadedModel(model, cast(ModelTokenizer, Letters()), "fp_table")


def test_assembled_engine_serves_and_says_what_it_is() -> None:
    engine = assemble(EngineConfig(kv_memory="4KiB", max_model_len=128), loaded())
    assert engine.info.exactness == "strict"
    assert engine.info.proposers == ("grammar", "suffix", "corpus", "prediction", "client")
    assert engine.info.paying_loads.startswith("drafts can"), "the passes were measured"
    assert (engine.info.max_model_len, engine.info.fingerprint) == (128, "fp_table")
    source = request("a", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True, stop=("zz",)))
    assert outputs(run(engine, source))["a", 0] == reference(source, noise_key(0, 0))
    assert engine.health().ready
    assert engine.watch.processor is processor_clock, "its steps count by work"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "no head for these weights"),
        ({"draft_head": "none"}, "draft_head is none"),
        ({"num_speculative_tokens": 0}, "the settings let no head draft"),
    ],
)
def test_a_start_says_in_one_line_which_head_drafts_or_why_none_does(fields: dict[str, Any], reason: str) -> None:
    config = EngineConfig.model_validate({"kv_memory": "4KiB", "max_model_len": 128, "strict": "off", **fields})
    with capture_logs() as lines:
        engine = build_engine(config, target=loaded())
    (line,) = [line for line in lines if line["event"] == "draft_head"]
    assert (line["head"], line["reason"]) == (None, engine.info.draft_head_reason)
    assert line["reason"].startswith(reason)


def test_ceiling_of_zero_loads_no_proposer_and_measures_nothing(tmp_path: Path) -> None:
    curve_file("fp_table", default_threads(), "").unlink()
    engine = assemble(EngineConfig(kv_memory="4KiB", num_speculative_tokens=0, strict="off"), loaded())
    assert engine.info.proposers == ()
    assert not engine.info.paying_loads
    assert not list(tmp_path.glob("profiles/*"))
    (mode,) = [e.stats.mode for e in run(engine, request("a", [1, 2])) if hasattr(e, "stats")]
    assert mode.reason == "plan_off"


def test_memory_that_does_not_hold_one_sequence_is_refused_with_what_is_needed() -> None:
    with pytest.raises(MemoryPlanError, match="160 needs 160B"):
        assemble(EngineConfig(kv_memory="100B"), loaded())


def test_memory_beyond_the_machine_is_refused_with_the_sum_and_what_to_lower() -> None:
    config = EngineConfig(kv_memory="400TiB", suffix_memory="63MiB", corpus_memory="62MiB")
    with pytest.raises(MemoryPlanError) as refused:
        assemble(config, loaded(), reserved=[MemoryUse("response cache", 5 << 20, "response_cache_bytes")])
    message = str(refused.value)
    for part in ("409600GiB KV cache (kv_memory)", "63MiB suffix index (suffix_memory)", "5MiB response cache"):
        assert part in message
    assert "62MiB indexes of corpora (corpus_memory)" in message
    assert "lower kv_memory to at most" in message


def test_automatic_memory_holds_the_requests_and_no_more() -> None:
    small = EngineConfig(kv_memory="auto", max_requests=2, max_model_len=128, strict="off")
    engine = assemble(small, loaded())
    assert isinstance(engine.runner, Runner)
    assert engine.runner.cache.num_pages == 2 * 128 // PAGE_SIZE


def of_long_context() -> LoadedModel:
    found = loaded()
    found.model.info = replace(found.model.info, max_positions=4096)  # type: ignore[misc]
    return found


def test_a_context_that_does_not_fit_is_cut_and_one_line_says_so() -> None:
    page = TableModel().info.page_bytes
    with capture_logs() as logs:
        engine = assemble(EngineConfig(kv_memory=f"{65 * page}B", strict="off"), of_long_context())
    assert engine.info.max_model_len == 2048
    [line] = [log for log in logs if log["log_level"] == "warning"]
    assert (line["event"], line["max_model_len"], line["model_limit"]) == ("context_cut", 2048, 4096)
    with capture_logs() as logs:
        engine = assemble(EngineConfig(kv_memory=f"{128 * page}B", strict="off"), of_long_context())
    assert engine.info.max_model_len == 4096
    assert not [log for log in logs if log["log_level"] == "warning"]
    with pytest.raises(MemoryPlanError, match=f"kv_memory {65 * page}B holds 2080 tokens; .* lower max_model_len"):
        assemble(EngineConfig(kv_memory=f"{65 * page}B", max_model_len=4096, strict="off"), of_long_context())


def test_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 161; allowed for this model: at most 160"):
        assemble(EngineConfig(max_model_len=161), loaded())


def test_names_of_proposers() -> None:
    assert proposer_names(EngineConfig(draft_model="small"))[-1] == "draft_model"
    assert proposer_names(EngineConfig(proposers=("suffix", "suffix"))) == ("suffix",)
    with pytest.raises(
        ConfigError, match="'sufix'; allowed: grammar, suffix, prompt_lookup, prediction, client, corpus, draft_model"
    ):
        proposer_names(EngineConfig(proposers=("sufix",)))
    assert proposer_names(EngineConfig(remote_proposer=RemoteProposerTerms(address="127.0.0.1:8600")))[-1] == "remote"
    with pytest.raises(ConfigError, match="draft_model is not set"):
        proposer_names(EngineConfig(proposers=("draft_model",)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"proposers": ("sufix",)}, "proposers names 'sufix'"),
        ({"remote_proposer": RemoteProposerTerms(address="127.0.0.1:8600")}, "remote_proposer.key is not set"),
    ],
)
def test_proposers_are_refused_before_the_model_is_loaded(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        start_engine(EngineConfig(model=str(tmp_path), **given))  # a folder without a model


def test_a_propose_server_has_a_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 32)
    with pytest.raises(ConfigError, match=r"remote_proposer\.key is not set"):
        RemoteAddress.of(EngineConfig(remote_proposer=RemoteProposerTerms(address="[::1]:8600")), b"")
    named = EngineConfig(remote_proposer=RemoteProposerTerms(address="[::1]:8600", key=key))
    address = RemoteAddress.of(named, b"")
    assert (address.host, address.port, address.tls) == ("::1", 8600, None)
