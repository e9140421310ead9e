"""The series that vLLM's dashboards query, under their names: ours, summed over the labels that vLLM has not."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

_SAME = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions"),
    *("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens"),
    *("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens"),
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
    *("request_decode_time_seconds", "request_inference_time_seconds", "spec_decode_num_drafts"),
    *("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
    *("spec_decode_num_accepted_tokens_per_pos",),
)
VLLM_NAMES: Mapping[str, str] = {
    **{f"prolepsis_{name}": f"vllm:{name}" for name in _SAME},
    "prolepsis_finished_answers": "vllm:request_success",
    "prolepsis_step_tokens": "vllm:iteration_tokens_total",
}
"""By our name, both without the suffixes of counters."""
_OF_FINISHED = ("prolepsis_e2e_request_latency_seconds", "prolepsis_request_time_per_output_token_seconds")
"""Of finished requests only, as vLLM has them."""
_LABELS = {"le": "le", "position": "position", "finish_reason": "finished_reason"}
"""Labels that both have, by our name."""


def under_vllm_names(families: Iterable[Metric], model: str) -> list[Metric]:
    """Return the families that vLLM has too, as vLLM shows them: of one model and one engine."""
    return [_renamed(family, model) for family in families if family.name in VLLM_NAMES]


def _renamed(family: Metric, model: str) -> Metric:
    name = VLLM_NAMES[family.name]
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        if family.name in _OF_FINISHED and sample.labels["outcome"] != "finished":
            continue
        labels = tuple((_LABELS[label], value) for label, value in sample.labels.items() if label in _LABELS)
        key = (name + sample.name.removeprefix(family.name), labels)
        sums[key] = sums.get(key, 0.0) + sample.value
    renamed = Metric(name, family.documentation, family.type)
    for (sample_name, labels), value in sums.items():
        renamed.samples.append(Sample(sample_name, {"model_name": model, "engine": "0", **dict(labels)}, value))
    return renamed
