"""What vLLM's dashboards query is there under vLLM's names."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from prolepsis.core.figures import RequestDone, StepDone
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.telemetry.vllm_names import VLLM_NAMES
from tests.core.telemetry.test_metrics import drafted
from tests.core.telemetry.test_requests import ended, prompt

BY = {"model_name": "tiny", "engine": "0"}
QUERIED = """
e2e_request_latency_seconds_bucket generation_tokens_total inter_token_latency_seconds_bucket iteration_tokens_total_sum
kv_cache_usage_perc num_preemptions_total num_requests_running num_requests_waiting prefix_cache_hits_total
prefix_cache_queries_total prompt_tokens_total request_decode_time_seconds_sum request_generation_tokens_bucket
request_inference_time_seconds_sum request_params_max_tokens_bucket request_prefill_time_seconds_sum
request_prompt_tokens_bucket request_queue_time_seconds_sum request_success_total
request_time_per_output_token_seconds_bucket spec_decode_num_accepted_tokens_per_pos_total
spec_decode_num_accepted_tokens_total spec_decode_num_draft_tokens_total spec_decode_num_drafts_total
time_to_first_token_seconds_bucket
"""
"""Names in the expressions of vLLM's dashboards (its examples/observability), without `vllm:`."""


def shown(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.exposition_for("", vllm_model="tiny")[0].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vllm:")
    }


def fed() -> Metrics:
    metrics = Metrics()
    metrics.set_load(3, 4, 0.5, ready=True)
    metrics.observe(StepDone({"forward": 0.5}, 7))
    metrics.observe(RequestDone(drafted()))
    one = prompt()
    one.intervals.see(0, 1, 1.0)
    one.intervals.see(0, 2, 1.5)
    unread = replace(prompt().stats, first_token_s=None)
    left = replace(prompt(), answer="cut", end="left", finish_reasons=(), stats=unread)
    metrics.requests.ended(ended(one, prompt("off"), left))
    return metrics


def test_every_name_that_the_dashboards_query_has_data_of_the_model() -> None:
    found = shown(fed())
    names = {name for name, labels in found if set(BY.items()) <= set(labels)}
    assert {f"vllm:{name}" for name in QUERIED.split()} <= names


def test_labels_that_vllm_has_not_are_summed() -> None:
    metrics = fed()
    found, by = shown(metrics), tuple(sorted(BY.items()))
    assert found["vllm:time_to_first_token_seconds_count", by] == 2  # drafted and plain together
    assert found["vllm:e2e_request_latency_seconds_sum", by] == 6.0  # of those that finished
    assert found["vllm:spec_decode_num_drafts_total", by] == 2
    stopped = tuple(sorted({**BY, "finished_reason": "stop"}.items()))
    assert found["vllm:request_success_total", stopped] == 2
    first = tuple(sorted({**BY, "position": "0"}.items()))
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total", first] == 1


def test_without_the_option_there_are_none() -> None:
    assert b"vllm:" not in fed().exposition()


def test_every_name_is_one_of_ours() -> None:
    families = {family.name for family in Metrics().registry.collect()}
    assert families >= VLLM_NAMES.keys()
