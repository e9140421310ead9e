from prolepsis.core.figures import FaultCount, RequestDone, StepDone
from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import EffectiveMode, RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from tests.paths import ROOT

DOCS = ROOT / "docs"


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
    metrics.observe(RequestDone(ended()))
    metrics.observe(RequestDone(RequestStats()))
    assert sample(metrics, "prolepsis_requests_effective_total", mode="on", reason="speculating") == 1
    assert sample(metrics, "prolepsis_generation_tokens_total") == 5
    assert sample(metrics, "prolepsis_prefix_cache_hits_total") == 4
    assert sample(metrics, "prolepsis_num_preemptions_total") == 1


def test_steps_are_split_by_stage() -> None:
    metrics = Metrics()
    metrics.observe(StepDone({"forward": 0.5, "propose": 0.25}, 3))
    metrics.observe(StepDone({"forward": 0.5}, 2))
    stem = "prolepsis_step_stage_duration_seconds"
    assert sample(metrics, f"{stem}_sum", stage="forward") == 1.0
    assert sample(metrics, f"{stem}_count", stage="forward") == 2
    assert sample(metrics, f"{stem}_sum", stage="propose") == 0.25
    assert sample(metrics, "prolepsis_steps_total") == 2
    assert sample(metrics, "prolepsis_step_tokens_sum") == 5
    assert sample(metrics, "prolepsis_step_duration_seconds_sum") == 1.25


def test_failures_and_load() -> None:
    metrics = Metrics()
    metrics.observe(FaultCount("proposer", "suffix", 2))
    metrics.observe(FaultCount("grammar"))
    metrics.observe(FaultCount("not_finite"))
    metrics.set_load(3, 4, 0.5, ready=True)
    text = metrics.exposition().decode()
    assert 'prolepsis_spec_decode_proposer_failures_total{proposer="suffix"} 2.0' in text
    assert "prolepsis_grammar_failures_total 1.0" in text
    assert "prolepsis_not_finite_failures_total 1.0" in text
    assert "prolepsis_num_requests_running 3.0" in text


def test_two_engines_in_one_process_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    one.observe(RequestDone(ended()))
    assert sample(one, "prolepsis_prompt_tokens_total") == 10
    assert sample(other, "prolepsis_prompt_tokens_total") == 0


def test_a_replay_is_not_a_request() -> None:
    metrics = Metrics()
    before = metrics.exposition()
    metrics.observe(RequestDone(RequestStats(num_output_tokens=7, mode=EffectiveMode("off", "replay", 0))))
    changed = set(metrics.exposition().splitlines()) - set(before.splitlines())
    ours = {line for line in changed if not line.startswith(b"process_")}
    assert ours == {b"prolepsis_replay_tokens_total 7.0"}


def test_drafts_of_a_remote_proposer() -> None:
    metrics = Metrics()
    metrics.observe(RemoteRounds(True, {"used": 2, "late": 1}, (0.004, 0.006)))
    metrics.observe(RemoteRounds(False, {"failed": 1}, ()))
    name = "prolepsis_remote_proposer"
    assert sample(metrics, f"{name}_drafts_total", outcome="used") == 2
    assert sample(metrics, f"{name}_drafts_total", outcome="failed") == 1
    assert sample(metrics, f"{name}_round_seconds_count") == 2
    assert sample(metrics, f"{name}_connected", proposer="remote") == 0
