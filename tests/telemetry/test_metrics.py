from pathlib import Path

from prolepsis.api.app import build
from prolepsis.api.features import Sources
from prolepsis.core.config import ServerConfig
from prolepsis.core.stats import EffectiveMode, RequestStats
from prolepsis.policy.runtime import Policies
from prolepsis.policy.source import PolicyFile
from prolepsis.rollout.runtime import Rollouts
from prolepsis.safety.flag_file import FlagFileProvider
from prolepsis.store.store import opened_store
from prolepsis.telemetry.metrics import Metrics
from tests.api.fakes import ByteTokenizer, FakeEngine
from tests.rollout.stores import memory_store
from tests.safety.flag_files import flag, write

DOCS = Path(__file__).parents[2] / "docs"


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def ended() -> RequestStats:
    return RequestStats(
        num_prompt_tokens=10,
        num_cached_tokens=4,
        num_output_tokens=5,
        num_preemptions=1,
        mode=EffectiveMode("on", "speculating", 1),
    )


def test_tokens_are_counted_once_for_each_request_of_the_engine() -> None:
    metrics = Metrics()
    metrics.request_ended(ended())
    metrics.request_ended(RequestStats())
    assert sample(metrics, "prolepsis_requests_effective_total", mode="on", reason="speculating") == 1
    assert sample(metrics, "prolepsis_generation_tokens_total") == 5
    assert sample(metrics, "prolepsis_prefix_cache_hits_total") == 4
    assert sample(metrics, "prolepsis_num_preemptions_total") == 1


def test_steps_are_split_by_stage() -> None:
    metrics = Metrics()
    metrics.step_done({"forward": 0.5, "propose": 0.25}, num_tokens=3)
    metrics.step_done({"forward": 0.5}, num_tokens=2)
    stem = "prolepsis_step_stage_duration_seconds"
    assert sample(metrics, f"{stem}_sum", stage="forward") == 1.0
    assert sample(metrics, f"{stem}_count", stage="forward") == 2
    assert sample(metrics, f"{stem}_sum", stage="propose") == 0.25
    assert sample(metrics, "prolepsis_steps_total") == 2
    assert sample(metrics, "prolepsis_step_rows_total") == 5
    assert sample(metrics, "prolepsis_step_duration_seconds_sum") == 1.25


def test_failures_load_and_info() -> None:
    metrics = Metrics()
    metrics.proposer_failed("suffix", 2)
    metrics.grammar_failed()
    metrics.set_load(3, 4, 0.5)
    metrics.describe(model="m", forward="f", exactness="strict")
    text = metrics.exposition().decode()
    assert 'prolepsis_spec_decode_proposer_failures_total{proposer="suffix"} 2.0' in text
    assert "prolepsis_grammar_failures_total 1.0" in text
    assert "prolepsis_num_requests_running 3.0" in text
    assert 'prolepsis_engine_info{exactness="strict",forward="f",model="m"} 1.0' in text


def test_two_engines_in_one_process_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    one.request_ended(ended())
    assert sample(one, "prolepsis_prompt_tokens_total") == 10
    assert sample(other, "prolepsis_prompt_tokens_total") == 0


def test_a_replay_is_no_request() -> None:
    metrics = Metrics()
    before = metrics.exposition()
    metrics.request_ended(RequestStats(num_output_tokens=7, mode=EffectiveMode("off", "replay", 0)))
    changed = set(metrics.exposition().splitlines()) - set(before.splitlines())
    assert changed == {b"prolepsis_replay_tokens_total 7.0"}


def test_every_metric_is_in_the_documents(tmp_path: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md") if path.name != "log.md"]
    named = "\n".join(texts)
    assert len(texts) > 10
    metrics, engine = Metrics(), FakeEngine()
    config = ServerConfig(
        store=f"sqlite:///{tmp_path / 'store.sqlite'}",
        kill_file=tmp_path / "kill.json",
        breaker_file=tmp_path / "breakers.json",
    )
    (tmp_path / "policy.yaml").write_text("default: {mode: on}\n")
    rollouts = Rollouts(memory_store(), engine.stop_run, metrics.registry, model="tiny")
    policies = Policies(PolicyFile(tmp_path / "policy.yaml"), engine.info.proposers, rollouts)
    flags = FlagFileProvider(write(tmp_path / "flags.json", flag()))
    with opened_store(config, metrics.registry) as store:
        build(config, engine, ByteTokenizer(), metrics, sources=Sources(policies=policies, flags=flags, store=store))
        families = [family.name for family in metrics.registry.collect()]
    assert len(families) > 60
    assert [name for name in families if name not in named] == []
