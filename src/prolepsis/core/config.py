"""How an engine is set up. What may change while serving is not here: it is a `SpecPlan`."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, field_validator

DEFAULT_MODEL = "smollm2-135m-instruct"
DRAFT_HEAD = "draft_head"
"""The proposer whose weights are exchanged while serving."""
PROPOSER_NAMES = ("grammar", "suffix", "prompt_lookup", "prediction", "draft_model", DRAFT_HEAD, "early_exit")
"""Every proposer there is; which of them are loaded is said by `EngineConfig.proposers`."""


class EngineConfig(BaseModel):
    """All that an engine is built from; every field has a flag, an environment variable and a file key of its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=DEFAULT_MODEL, description="registry name, folder of safetensors, GGUF file, or hub id")
    model_dir: Path | None = Field(
        default=None, description="where models are kept; default: the user's cache directory"
    )
    forward: Literal["auto", "native", "lean", "transformers"] = Field(
        default="auto", description="which forward runs the model"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where the model runs")
    threads: int | None = Field(default=None, ge=1, description="CPU threads of a pass; default: all cores")
    max_model_len: int | None = Field(
        default=None, ge=1, description="longest prompt plus answer; default: the model's own limit"
    )
    kv_memory: str = Field(default="768MiB", description="memory for KV pages, e.g. 768MiB or 2GiB")
    max_requests: int = Field(default=64, ge=1, description="samples that run at once")
    max_step_tokens: int = Field(
        default=512, ge=16, description="tokens of one step over all requests (prefill chunks and drafts)"
    )
    prefix_cache: bool = Field(default=True, description="reuse KV of equal prompt prefixes within a tenant scope")
    strict: Literal["auto", "on", "off"] = Field(
        default="auto", description="bitwise equality with plain decoding; auto: where the self-check proves it"
    )
    proposers: tuple[str, ...] = Field(
        default=("grammar", "suffix", "prompt_lookup", "prediction"), description="proposers to load"
    )
    draft_model: str | None = Field(default=None, description="model of the draft_model proposer")
    draft_head: str = Field(
        default="auto", description="draft head: auto (one trained for this model, if any), none, a name or a folder"
    )
    early_exit_layer: int | None = Field(
        default=None,
        ge=1,
        description="layers of the model that the early_exit proposer drafts with",
    )
    num_speculative_tokens: int = Field(
        default=16, ge=0, description="ceiling on drafted tokens a step; 0 turns speculation off"
    )
    shadow_cost: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="time that drafting in shadow may take, as a share of the model's; requests beyond are put off; 0: "
        "all of them, 1: none",
    )
    default_sampling: Literal["model", "openai"] = Field(
        default="model",
        description="sampling parameters that a client leaves out: those the model's makers recommend, or OpenAI's",
    )
    suffix_memory: str = Field(default="64MiB", description="memory bound of the shared suffix index")


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    return re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:***@", url)


class ServerConfig(BaseModel):
    """How the HTTP room is set up; every field has a flag, an environment variable and a file key of its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    served_model_names: tuple[str, ...] = Field(
        default=(), description="names clients may use; default: the model's own name"
    )
    keys_file: Path | None = Field(
        default=None, description="API keys, as `prolepsis keys` keeps them; default: the user's own"
    )
    tls_certificate: Path | None = Field(default=None, description="certificate chain (PEM); serves https")
    tls_key: Path | None = Field(default=None, description="private key of the certificate; default: in the same file")
    policy: Path | None = Field(
        default=None,
        description="policy file: which requests may speculate and how; taken anew when it changes; default: the "
        "version in the store, if there is one",
    )
    store: Annotated[str, PlainSerializer(without_password, when_used="json")] = Field(
        default="auto",
        description="where request records, rollouts, versions of the policy and the audit log are kept: auto (SQLite "
        "in the user's data directory), none, sqlite:///FILE or postgresql://USER@HOST/DATABASE",
    )
    store_sample: float = Field(default=1.0, ge=0, le=1, description="share of ended requests that are recorded")
    store_retention_days: float = Field(default=30.0, ge=0, description="days that these records are kept; 0: for good")
    audit_sample: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of requests whose drafts, verdicts and answers the audit log keeps; a policy's rule may say "
        "otherwise",
    )
    audit_content: Literal["digests", "text", "tokens"] = Field(
        default="digests",
        description="what the audit log keeps of prompts and answers: salted digests; text, redacted; or tokens too, "
        "where redaction finds nothing, so that `prolepsis audit replay` can decode them again",
    )
    replay_sample: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of finished requests that are decoded again without speculation and compared; 0: none",
    )
    replay_queue: int = Field(default=256, ge=1, description="requests that may wait to be decoded again")
    replay_beside: int | None = Field(
        default=None,
        ge=0,
        description="decode again only beside so many samples, 0: while the engine is idle; default: while it has room",
    )
    replay_trip_after: int = Field(
        default=0,
        ge=0,
        description="every so many replays with structural differences turn the kill switch on; 0: never",
    )
    output_policies: Path | None = Field(
        default=None, description="file of the policies that every answer passes before its client sees it"
    )
    flags: Path | None = Field(
        default=None, description="feature flags in flagd's format, JSON or YAML; taken anew when the file changes"
    )
    flag_provider: str | None = Field(
        default=None, description="another OpenFeature provider: PACKAGE.MODULE:NAME of what makes it"
    )
    kill_file: Path | None = Field(
        default=None, description="where the kill switch is kept; default: kill.json in the user's data directory"
    )
    breaker: Literal["on", "metrics_only", "off"] = Field(
        default="on",
        description="leave out a proposer for the traffic classes of requests where it does harm, or say so only",
    )
    breaker_file: Path | None = Field(
        default=None,
        description="where breakers set by hand are kept; default: breakers.json in the user's data directory",
    )
    breaker_min_acceptance: float = Field(
        default=0.1,
        ge=0,
        le=0.6,
        description="least share of first drafted tokens that are right; surely below, its breaker opens",
    )
    prices: Path | None = Field(
        default=None, description="price book: what an hour of the device costs; taken anew when the file changes"
    )
    price: str | None = Field(
        default=None, description="name of the price that counts here; default: the book has only one"
    )
    drift: Literal["on", "off"] = Field(
        default="on", description="watch acceptance of each proposer and traffic class for drift and cliffs"
    )
    drift_cliff: Literal["alarm", "open_breaker"] = Field(
        default="alarm", description="what a cliff of acceptance does: say so, or open that proposer's breaker too"
    )
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024, description="largest request body that is read")
    max_header_bytes: int = Field(
        default=32 * 2**10, ge=1024, le=2**20, description="largest size of all request headers together"
    )
    max_in_engine: int | None = Field(
        default=None, ge=1, description="samples let through to the engine at once; default: max_requests"
    )
    max_queued: int = Field(default=2048, ge=0, description="requests that may wait before the engine")
    max_queued_per_tenant: int = Field(default=1024, ge=0, description="requests of one tenant that may wait")
    requests_per_minute: dict[str, int] = Field(
        default_factory=dict, description="by key, tier:NAME, key:ID, tenant or tenant:NAME; default: no limit"
    )
    tokens_per_minute: dict[str, int] = Field(
        default_factory=dict, description="prompt and answer tokens, by the same names; default: no limit"
    )
    request_timeout_s: float | None = Field(
        default=None, gt=0, description="longest time of a request; x-request-timeout-ms may shorten it; default: none"
    )
    max_connections: int | None = Field(
        default=None,
        ge=1,
        description="connections open at once; default: 4096, or what the limit of open files leaves",
    )
    header_timeout_s: float = Field(
        default=10.0, gt=0, description="seconds within which the headers of a request have to arrive"
    )
    upload_timeout_s: float = Field(default=60.0, gt=0, description="seconds within which a body has to arrive")
    write_timeout_s: float = Field(
        default=60.0, gt=0, description="seconds a client may take none of its answer before the request is aborted"
    )
    shed_after_s: tuple[float, ...] = Field(
        default=(2.0, 5.0, 10.0, 20.0),
        description="ages of the queue from which drafts get shorter, speculation stops, batch waits and low tiers are "
        "refused; none: never",
    )
    shed_hold_s: float = Field(default=5.0, gt=0, description="calm seconds before each of these steps is taken back")
    response_cache_bytes: int = Field(
        default=0, ge=0, description="memory for stored answers of deterministic requests; 0 stores none"
    )
    response_cache_ttl_s: float = Field(default=300.0, gt=0, description="seconds that an answer is stored at most")
    shutdown_s: float = Field(
        default=10.0,
        ge=0,
        description="seconds that requests in flight get to finish after a stop signal; then they are aborted",
    )
    count_rejected_prediction_tokens: bool = Field(
        default=True, description="count rejected prediction tokens in usage.completion_tokens, as OpenAI does"
    )
    reasoning: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="show what a model thinks between <think> marks as reasoning; auto: where its template has them",
    )

    @field_validator("shed_after_s")
    @classmethod
    def _levels(cls, ages: tuple[float, ...]) -> tuple[float, ...]:
        if len(ages) not in (0, 4) or list(ages) != sorted(ages) or any(age <= 0 for age in ages):
            raise ValueError("allowed: none, or four rising numbers above 0")
        return ages
