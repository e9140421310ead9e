"""The figures of a request that has ended, one row each; no text of prompt or answer.

The columns of its record, attributes of its spans, counters and their reference are made of this table. A new figure is
counted where it happens, in a field of `RequestStats`, and takes a row here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal

from msgspec import to_builtins

from prolepsis.core.ended import PromptEnded, RequestAbout
from prolepsis.core.stats import DeviceKind

Source = Literal["about", "prompt", "stats"]
"""What it is read from: `RequestAbout`, `PromptEnded`, or the prompt's `RequestStats`."""
Kind = Literal["text", "text?", "word", "id?", "count", "seed?", "seconds", "seconds?", "share?", "flag?", "json"]
"""A word has at most 16 letters, an id 32. With a question mark: it may be unknown; an empty text is."""
Span = Literal[
    "request",  # of the HTTP request
    "prompt",  # of one prompt; the same if the request has no other
    "reported",  # likewise, if the engine said what became of it
    "timed",  # likewise, if the engine's figures came
    "prefill",
    "decode",
]


@dataclass(frozen=True, slots=True)
class RequestFigure:
    source: Source
    name: str  # its column in `request_records`
    kind: Kind
    text: str
    read: Callable[..., Any]  # from its source; None: it is not known
    at: tuple[Span, str] | None = None  # the span that has it, and its attribute there
    counters: Mapping[str, str] | None = None  # counters of its sum over requests, with their texts


def _figure(
    source: Source,
    path: str,
    kind: Kind,
    text: str,
    at: tuple[Span, str] | None = None,
    *,
    counters: Mapping[str, str] | None = None,
) -> RequestFigure:
    """`path`: its place in the source; the last part is its name."""
    read: Callable[[object], object] = attrgetter(path)
    if kind == "json":
        read = partial(lambda field, value: to_builtins(field(value)), read)
    elif kind in ("text?", "id?"):
        read = partial(lambda field, value: field(value) or None, read)
    return RequestFigure(source, path.rpartition(".")[2], kind, text, read, at, counters)


def _device(kind: DeviceKind | Literal["predicted_plain"], text: str) -> RequestFigure:
    def read(prompt: PromptEnded) -> object:
        return getattr(prompt.stats.device, kind) if prompt.answer != "unreported" else None

    name = "predicted_plain_s" if kind == "predicted_plain" else f"device_{kind}_s"
    return RequestFigure("prompt", name, "seconds?", text, read)


_about, _prompt, _stats = partial(_figure, "about"), partial(_figure, "prompt"), partial(_figure, "stats")

FIGURES: tuple[RequestFigure, ...] = (
    _prompt("request.request_id", "text", "id in the engine", ("prompt", "prolepsis.request.id")),
    _about("answer_id", "text", "id that its client sees", ("request", "gen_ai.response.id")),
    _about("http_request_id", "text?", "`x-request-id`"),
    _about("trace_id", "id?", "of `traceparent`"),
    _about("tenant", "text", "of its key"),
    _about("key_id", "text", "its key"),
    _about("tier", "text", "of its key", ("request", "prolepsis.tier")),
    _about("route", "text", "the route's pattern", ("request", "http.route")),
    _about("model", "text", "as its client names it", ("request", "gen_ai.request.model")),
    RequestFigure("prompt", "terminal", "word", "how it ended", attrgetter("end")),
    _prompt("error", "text?", "code of the error if it failed"),
    _prompt("kept_form", "flag?", "whether a structured answer is whole"),
    _prompt("met_target", "flag?", "whether it kept its latency target"),
    _prompt("request.params.seed", "seed?", "its client's, or the one that was drawn"),
    _about("policy_rule", "text?", "rule of the policy", ("request", "prolepsis.policy.rule")),
    _about("policy_version", "text?", "of the policy", ("request", "prolepsis.policy.version")),
    _about("flags", "json", "variant and reason, by flag"),
    _about("rollout_run", "text?", "its rule's rollout and run", ("request", "prolepsis.rollout.run")),
    _about("arm", "text?", "of that rollout", ("request", "prolepsis.rollout.arm")),
    _about("canary_share", "share?", "with which chance drew it for a comparison"),
    _prompt("request.traffic_class", "text?", "of its drafts", ("prompt", "prolepsis.traffic_class")),
    _stats("mode.mode", "word", "what speculation did", ("reported", "prolepsis.mode.effective")),
    _stats("mode.reason", "text", "why", ("reported", "prolepsis.mode.reason")),
    _stats("mode.plan_version", "count", "of the plan in effect", ("reported", "prolepsis.plan.version")),
    _stats(
        "num_prompt_tokens",
        "count",
        "tokens of its prompt",
        ("prefill", "gen_ai.usage.input_tokens"),
        counters={
            "prompt_tokens": "Prompt tokens of ended requests",
            "prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
        },
    ),
    _stats(
        "num_cached_tokens",
        "count",
        "from the prefix cache",
        ("prefill", "gen_ai.usage.cache_read.input_tokens"),
        counters={"prefix_cache_hits": "Prompt tokens found in the prefix cache"},
    ),
    _stats(
        "num_output_tokens",
        "count",
        "tokens of its answer",
        ("decode", "gen_ai.usage.output_tokens"),
        counters={"generation_tokens": "Tokens generated for ended requests"},
    ),
    _stats("num_steps", "count", "target passes that emitted tokens", ("decode", "prolepsis.target_passes")),
    _stats(
        "num_preemptions",
        "count",
        "times it was preempted",
        ("reported", "prolepsis.preemptions"),
        counters={"num_preemptions": "Preemptions of ended requests"},
    ),
    _stats("num_drafts", "count", "verified drafts", ("decode", "prolepsis.speculation.rounds")),
    _stats("num_draft_tokens", "count", "of these drafts", ("decode", "prolepsis.speculation.drafted_tokens")),
    _stats("num_accepted", "count", "of these tokens", ("decode", "prolepsis.speculation.accepted_tokens")),
    _stats("quality", "word", "what acceptance says of its answer", ("reported", "prolepsis.quality")),
    _stats("proposers", "json", "counts of verified drafts, by proposer"),
    _stats("shadow", "json", "counts of drafts compared in shadow, by proposer"),
    _stats("queue_s", "seconds", "in the engine's queue", ("timed", "gen_ai.latency.time_in_queue")),
    _stats("compute_s", "seconds", "running in the engine", ("timed", "gen_ai.latency.time_in_model_inference")),
    _stats("first_token_s", "seconds?", "to the first token", ("timed", "gen_ai.latency.time_to_first_token")),
    _stats("total_s", "seconds", "in the engine", ("timed", "gen_ai.latency.e2e")),
    _device("prefill", "device time: its share of passes over its prompt"),
    _device("plain", "its share of passes that decoded, as long as they would take without drafts"),
    _device("verify", "what draft tokens added to these passes"),
    _device("propose", "making drafts"),
    _device("host", "scheduling and committing, while the device waits"),
    _stats("correction_s", "seconds", "making and verifying draft tokens that were rejected"),
    _device("predicted_plain", "predicted device time of plain decoding"),
)


def figures_of(about: RequestAbout, prompt: PromptEnded) -> dict[str, object]:
    sources: Mapping[Source, object] = {"about": about, "prompt": prompt, "stats": prompt.stats}
    return {figure.name: figure.read(sources[figure.source]) for figure in FIGURES}
