"""The configuration of engine and server. Values that may change while serving are in `SpecPlan` instead."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo, field_validator

from prolepsis.core.given_sampling import given_sampling

DEFAULT_MODEL = "smollm2-135m-instruct"
DRAFT_HEAD: Literal["draft_head"] = "draft_head"
"""The proposer whose weights can be swapped while serving."""
CANDIDATE_HEAD: Literal["candidate_head"] = "candidate_head"
"""A second draft head, for trials."""
LEARNT_HEAD: Literal["learnt_head"] = "learnt_head"
"""A third one, which learnt from traffic and won its trial."""
HeadProposerName = Literal["draft_head", "candidate_head", "learnt_head"]
NAMED_HEADS: tuple[HeadProposerName, ...] = (CANDIDATE_HEAD, LEARNT_HEAD)
"""Heads that are loaded while serving, and draft only where they are named, by a rule or by an operator."""
HEAD_PROPOSERS: tuple[HeadProposerName, ...] = (DRAFT_HEAD, *NAMED_HEADS)
CLIENT = "client"
CORPUS = "corpus"
SYNTHETIC = "synthetic"
UPSTREAM = "upstream"
"""The name under which the drafts of an upstream engine count; it is never loaded."""
UpstreamApi = Literal["vllm", "sglang", "llama.cpp"]
MERGED = "merged"
"""Signs drafts that several proposers made together; none is called so."""
PROPOSER_NAMES = (
    *("grammar", "suffix", "prompt_lookup", "prediction", CLIENT, CORPUS, "draft_model"),
    *(*HEAD_PROPOSERS, "early_exit", "remote", SYNTHETIC, UPSTREAM),
)
"""All proposers; `EngineConfig.proposers` names the loaded ones."""


MovedLine = Literal["date", "tokens_left"]
"""Lines of system texts that the server may move behind the conversation."""
Leniency = Literal["fields", "clamp_max_tokens", "open_objects", "move_date", "move_tokens_left"]
AUTO = "auto"
"""A value that is chosen at the start."""
DAY_S = 86400.0
"""Seconds of a day, for the settings that are given in days."""


def _none_for_auto(given: object) -> object:
    return None if given == AUTO else given


def _auto_for_none(value: int | None) -> int | str:
    return AUTO if value is None else value


COMMON = "common"
Value = TypeVar("Value")
Common = Annotated[Value, COMMON]
"""A setting that many people give: `--help` shows its flag, and `--help-all` those of the others too."""
AutoLength = Annotated[int | None, BeforeValidator(_none_for_auto), PlainSerializer(_auto_for_none)]


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    return re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:***@", url)


class SettingTerms(BaseModel):
    """Values of one setting, as NAME=VALUE,... or as a mapping of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def described(terms: type[SettingTerms]) -> str:
    """Return what each of some terms means, with its default."""
    parts = []
    for name, info in terms.model_fields.items():
        default = "" if info.default is None or info.is_required() else f" ({info.default})"
        parts.append(f"{name}{default}: {info.description}")
    return "; ".join(parts)


class UpstreamTerms(SettingTerms):
    api: UpstreamApi = Field(default="vllm", description="their kind")
    plain: str | None = Field(default=None, description="URL of those that do not speculate")
    speculating: str | None = Field(
        default=None, description="URL of those that speculate, up to num_speculative_tokens; default: none"
    )
    key_file: Path | None = Field(default=None, description="file with the API key of both URLs")


class RemoteProposerTerms(SettingTerms):
    address: Annotated[str | None, PlainSerializer(without_password, when_used="json-unless-none")] = Field(
        default=None, description="HOST:PORT, or redis://HOST:PORT/DB?stream=NAME of a queue"
    )
    key: Path | None = Field(default=None, description="file with the key")
    ca: Path | None = Field(
        default=None, description="certificates (PEM) that verify the propose server or Redis; turns on TLS to it"
    )
    ahead: int = Field(
        default=16,
        ge=1,
        le=128,
        description="the remote proposer is asked again when fewer of its draft tokens than this are left",
    )
    wait_ms: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="longest time that a step waits for the remote proposer's drafts; 0: it never waits, and a later "
        "step uses or drops the draft",
    )

    @field_validator("address")
    @classmethod
    def _address(cls, given: str | None) -> str | None:
        from prolepsis.core.network import QUEUE_ADDRESS, host_and_port  # takes time to import

        place = None if given is None else host_and_port(given)
        if given is not None and (place is None or place[1] == 0) and not QUEUE_ADDRESS.fullmatch(given):
            raise ValueError("allowed: HOST:PORT, such as 10.0.0.7:8600, or redis://HOST:PORT/DB?stream=NAME")
        return given


class LimitTerms(SettingTerms):
    max_header_bytes: int = Field(
        default=32 * 2**10, ge=1024, le=2**20, description="largest total size of the request headers"
    )
    header_timeout_s: float = Field(
        default=10.0, gt=0, description="seconds in which the headers of a request must arrive"
    )
    upload_timeout_s: float = Field(default=60.0, gt=0, description="seconds in which a body must arrive")
    write_timeout_s: float = Field(
        default=60.0, gt=0, description="seconds without progress in sending after which the request is aborted"
    )
    max_connections: int | None = Field(
        default=None, ge=1, description="most open connections; default: 4096, less if the limit of open files is lower"
    )
    max_queued: int = Field(default=2048, ge=0, description="most requests in the queue")
    max_queued_per_tenant: int = Field(default=1024, ge=0, description="most requests of one tenant in the queue")
    shed_hold_s: float = Field(default=5.0, gt=0, description="seconds without overload until a level is left")
    corpus_tokens_in_all: int = Field(default=4_000_000, ge=0, description="most tokens of all corpora")
    response_cache_ttl_s: float = Field(default=300.0, gt=0, description="seconds until a cached answer expires")
    samples_per_replica: int = Field(
        default=32, ge=1, description="samples in flight per engine, if the number of engines follows the load"
    )
    start_drafts: int = Field(
        default=64,
        ge=0,
        description="number of first drafts of a traffic class that are limited to 4 tokens; 0: none; a policy may "
        "override it",
    )
    breaker_min_acceptance: float = Field(
        default=0.1,
        ge=0,
        le=0.6,
        description="a breaker opens when the acceptance of first draft tokens is reliably below this",
    )
    replay_queue: int = Field(default=256, ge=1, description="most requests that wait for their replay")
    replay_beside: int | None = Field(
        default=None,
        ge=0,
        description="replay only while at most this many sequences run; 0: while idle; default: if there is capacity",
    )
    replay_trip_after: int = Field(
        default=0,
        ge=0,
        description="engage the kill switch after every N replays with structural differences; 0: never",
    )


class EngineConfig(BaseModel):
    """The settings of an engine; every field has a flag, an environment variable and a file key of its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Common[str] = Field(default=DEFAULT_MODEL, description="name, folder of safetensors, GGUF file or hub id")
    model_dir: Path | None = Field(
        default=None, description="where models are kept; default: the user's cache directory"
    )
    engine: Common[Literal["prolepsis", "vllm", "upstream"]] = Field(
        default="prolepsis",
        description="what runs the model: our own engine; vLLM, which must be installed, with our drafts and sampler; "
        "or other engines over HTTP, for which only the tokenizer of the model is loaded here",
    )
    vllm_args: str = Field(default="", description="further engine arguments of vLLM, as a JSON object")
    upstream: UpstreamTerms = Field(
        default=UpstreamTerms(), description=f"the engines over HTTP: {described(UpstreamTerms)}"
    )
    forward: Literal["auto", "native", "lean", "transformers"] = Field(
        default="auto", description="implementation that runs the model"
    )
    weights: Common[Literal["auto", "f32", "bf16", "q8", "q4"]] = Field(
        default="auto",
        description="format of weights in the native forward; auto: as stored in the file; bf16: expanded; q8, q4: "
        "weights of 16 or 32 bits are quantised once, and kept in the cache directory; f32: sums in 32 bits (slow)",
    )
    activations: Literal["auto", "int8", "bf16"] = Field(
        default="auto",
        description="format of the inputs that quantised weights are multiplied with; bf16: results are bit for bit "
        "those of expanded weights; int8, the fastest: blocks of 32 (K formats: 256) are rounded to 8 bits; auto: int8",
    )
    device: Common[Literal["auto", "cpu", "cuda"]] = Field(default="auto", description="device that the model runs on")
    threads: Common[int | None] = Field(default=None, ge=1, description="CPU threads of a pass; default: all cores")
    max_model_len: Common[AutoLength] = Field(
        default=None,
        ge=1,
        description="most tokens of prompt and answer together; auto, the default: the model's limit, or less if the "
        "KV cache holds less",
    )
    kv_memory: Common[str] = Field(
        default="auto",
        description="memory of the KV cache: an amount such as 2GiB, or a share of what all else leaves free, such as "
        "40%; auto: a quarter, up to half for one context; never more than max_requests can use",
    )
    max_requests: Common[int] = Field(default=64, ge=1, description="sequences that run at once")
    max_step_tokens: int = Field(
        default=512, ge=16, description="most tokens of one step over all requests, prefill chunks and drafts included"
    )
    chunk_limit_ms: float = Field(
        default=40.0,
        ge=0,
        allow_inf_nan=False,
        description="longest time that prompts add to a step in which other requests decode, but at least 8 tokens "
        "and half of the time of decoding; less: steadier streams, and later first tokens; 0: no limit",
    )
    prefix_cache: bool = Field(default=True, description="reuse the KV cache of equal prompt prefixes within a tenant")
    prefix_disk: str = Field(
        default="0",
        description="most disk for pages of long prompts, which are there again after a restart, in the user's cache "
        "directory; 0: none is kept",
    )
    strict: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="bitwise equality with plain decoding; auto: where the forward promises and passes it",
    )
    synthetic: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        default=(),
        description="shares of drafted tokens that are right, by place or for all: the synthetic proposer alone drafts",
    )
    proposers: Common[tuple[str, ...]] = Field(
        default=("grammar", "suffix", "corpus", "prediction", "client"), description="proposers to load"
    )
    draft_model: str | None = Field(default=None, description="model that the draft_model proposer drafts with")
    draft_head: Common[str] = Field(
        default="auto", description="draft head: auto (champion or shipped for this model), none, a name or a folder"
    )
    early_exit_layer: int | None = Field(
        default=None, ge=1, description="number of first layers that the early_exit proposer drafts with"
    )
    remote_proposer: RemoteProposerTerms | None = Field(
        default=None,
        description="the `prolepsis propose-server` that the remote proposer asks for drafts, and the key that both "
        f"share: {described(RemoteProposerTerms)}",
    )
    num_speculative_tokens: Common[int] = Field(
        default=24, ge=0, description="most draft tokens of a step; 0 turns speculation off"
    )
    propose_limit_ms: float = Field(
        default=150.0,
        ge=0,
        description="longest time of a call of a proposer, for a costly one in addition to a pass; a call that takes "
        "longer is abandoned, and the breaker opens; 0: no limit",
    )
    stuck_after_s: float = Field(
        default=60.0,
        ge=0,
        description="seconds of processor time, or without any (on a GPU: of time), after which a step counts as stuck "
        "and its engine as dead; after a third of it the server is not ready; 0: never",
    )
    shadow_cost: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="most time of drafts that are only compared, as in shadow mode, as a share of the model's time; 0: "
        "none are, 1: no limit",
    )
    tool_format: str = Field(
        default="auto",
        description="how the model writes tool calls, by name; auto: as its chat template writes them; docs/reference/"
        "tool-formats.md lists the names",
    )
    reasoning_format: str = Field(
        default="auto",
        description="marks between which the model reasons, by name, or none to show all as content; auto: those that "
        "its chat template has",
    )
    default_sampling: str = Field(
        default="model",
        description="sampling parameters that a client leaves out: model: as the model's makers recommend; openai: "
        "OpenAI's; or values over these, e.g. temperature=0.7,top_p=0.8 or openai,top_k=20",
    )
    suffix_memory: str = Field(default="64MiB", description="most memory of the shared suffix index")
    corpus_memory: str = Field(default="64MiB", description="most memory of the indexes of corpora")

    @field_validator("default_sampling")
    @classmethod
    def _sampling(cls, given: str) -> str:
        given_sampling(given)
        return given


def days_by_tenant(given: Iterable[str]) -> Mapping[str, float]:
    """Return the days of TENANT=DAYS texts; raises ValueError naming the wrong one."""
    days: dict[str, float] = {}
    for text in given:
        tenant, _, number = text.rpartition("=")
        if not tenant or re.fullmatch(r"\d{1,6}(?:\.\d+)?", number) is None:
            raise ValueError(f"{text!r}; allowed: TENANT=DAYS, such as acme=7")
        days[tenant] = float(number)
    return days


TARGET = "target"  # who wrote a text where no writer did; no writer has this name


class WriterAddress(NamedTuple):
    url: str  # without /v1
    model: str = ""  # empty: the endpoint's own
    key_file: str = ""


def writers_by_name(given: Iterable[str]) -> Mapping[str, WriterAddress]:
    """Return the writers of NAME=URL[,MODEL[,KEYFILE]] texts, or of their parts; raises ValueError for other parts."""
    writers, last = dict[str, list[str]](), [""] * 3
    for part in [part.strip() for text in given for part in text.split(",")]:
        place = re.fullmatch(r"([\w.-]{1,64})=(https?://[^/\s@]+(?:/\S*)?)", part)
        if place is not None and place[1] != TARGET:
            last = writers[place[1]] = [place[2].rstrip("/").removesuffix("/v1")]
        elif len(last) < 3 and "://" not in part:
            last.append(part)
        else:
            raise ValueError(f"{without_password(part)!r}; allowed: NAME=URL[,MODEL[,KEYFILE]], NAME not {TARGET}")
    return {name: WriterAddress(*parts) for name, parts in writers.items()}


OWN_CLUSTER = "local"
"""`ray_address` of a server that starts Ray itself."""


class ServerConfig(BaseModel):
    """The settings of the HTTP server; every field has a flag, an environment variable and a file key of its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: Common[str] = Field(default="127.0.0.1", description="address to listen on")
    port: Common[int] = Field(default=8000, ge=0, le=65535, description="port to listen on; 0: any free port")
    replicas: Common[int] = Field(
        default=1,
        ge=1,
        description="number of engines on Ray Serve, which share the cores; a request whose replica is lost continues "
        "in another one; 1: one engine, without Ray",
    )
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        description="most engines on Ray Serve: their number follows the load, from replicas up; default: replicas",
    )
    ray_address: str = Field(
        default=OWN_CLUSTER,
        pattern=r"^(local|auto|[^/\s]+:[0-9]{1,5})$",
        description="Ray cluster for the replicas: local: one of the server's own on this machine, which ends with it; "
        "auto: the one that runs on this machine; or HOST:PORT",
    )
    engine_process: Literal["on", "off"] = Field(
        default="off", description="run the engine in its own process, separate from HTTP and JSON"
    )
    served_model_names: tuple[str, ...] = Field(
        default=(), description="model names that clients may use; default: the model's own name"
    )
    keys_file: Common[Path | None] = Field(
        default=None, description="file of API keys, as `prolepsis keys` writes it; default: the user's file"
    )
    tls_certificate: Common[Path | None] = Field(default=None, description="certificate chain (PEM); turns on HTTPS")
    tls_key: Path | None = Field(default=None, description="private key of the certificate; default: in the same file")
    policy: Common[Path | None] = Field(
        default=None,
        description="policy file: which requests may speculate and how; read again when it changes; default: the "
        "version in the store, if there is one",
    )
    store: Common[Annotated[str, PlainSerializer(without_password, when_used="json")]] = Field(
        default="auto",
        description="where request records, rollouts, versions of the policy and the audit log are kept: auto (SQLite "
        "in the user's data directory), none, sqlite:///FILE or postgresql://USER@HOST/DATABASE",
    )
    store_sample: float = Field(default=1.0, ge=0, le=1, description="share of requests that get a record in the store")
    store_retention_days: float = Field(default=30.0, ge=0, description="days until records are deleted; 0: never")
    audit_sample: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of requests whose drafts, verification results and answers enter the audit log; rules of a "
        "policy may override it",
    )
    audit_content: Literal["digests", "text", "tokens"] = Field(
        default="digests",
        description="form of prompts and answers in the audit log: salted digests, redacted text, or tokens too if "
        "redaction finds nothing, so that `prolepsis audit replay` can replay them",
    )
    audit_key: Path | None = Field(
        default=None,
        description="private key that signs the end of the audit log; made if it is missing; default: audit-key.pem "
        "next to the key file",
    )
    audit_text_days: float = Field(
        default=30.0,
        ge=0,
        description="days until texts and tokens of requests are erased from the audit log, with the other details of "
        "their entries; 0: never",
    )
    audit_text_days_by_tenant: tuple[str, ...] = Field(
        default=(), description="days of single tenants in place of audit_text_days, as TENANT=DAYS; 0: never"
    )
    audit_anchor: tuple[str, ...] = Field(
        default=("auto",),
        description="places outside the store that get the signed end of the audit log: a file, log (a line of the "
        "server's log), an http(s) URL, auto (a file next to the audit key) or none",
    )
    replay_sample: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of finished requests that are replayed without speculation and compared; 0: none",
    )
    engine_restarts: int = Field(
        default=5,
        ge=0,
        description="most starts in a row of an engine that ended; its requests wait and continue in the new one; 0: "
        "never",
    )
    output_policies: Path | None = Field(
        default=None, description="file of the output policies, which filter every answer before the client gets it"
    )
    writers: tuple[str, ...] = Field(
        default=(),
        description="cheap models at other OpenAI endpoints, which write whole texts that the target checks, as "
        "NAME=URL[,MODEL[,KEYFILE]]; only /v1/candidates and batches with verify ask them",
    )
    traces: Annotated[str, PlainSerializer(without_password, when_used="json")] = Field(
        default="auto",
        description="receiver of traces, OTLP over HTTP: a URL (/v1/traces is added where it has no path), auto (if "
        "OTEL_EXPORTER_OTLP_ENDPOINT is set) or none",
    )
    trace_sample: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of requests whose trace is sent; a request that carries a trace decides itself; errors, "
        "fallbacks and mismatches are always sent",
    )
    alertmanager: Annotated[str, PlainSerializer(without_password, when_used="json")] = Field(
        default="none",
        description="Alertmanager whose alerts the console shows, and in which rollouts silence tickets about "
        "acceptance while a stage runs: a URL or none",
    )
    grafana_url: str = Field(
        default="none",
        pattern=r"^(none|https?://\S+)$",
        description="Grafana with the shipped dashboards, which the console links to: a URL or none",
    )
    record_tenants: bool = Field(default=False, description="recordings of traffic name tenants; default: number them")
    flags: Path | None = Field(
        default=None, description="file of feature flags in flagd's format, JSON or YAML; read again when it changes"
    )
    flag_provider: str | None = Field(
        default=None, description="PACKAGE.MODULE:NAME of a function that returns another OpenFeature provider"
    )
    controls_file: Path | None = Field(
        default=None,
        description="file of the kill switch, and of breakers and flags that operators set; default: controls.json in "
        "the user's data directory",
    )
    breaker: Literal["on", "metrics_only", "off"] = Field(
        default="on",
        description="breakers disable a proposer for traffic classes where it does harm, or only report it",
    )
    prices: Common[Path | None] = Field(
        default=None, description="price book: the cost of an hour of the device; read again when the file changes"
    )
    price: str | None = Field(
        default=None, description="name of the price of this server; default: the only one of the book"
    )
    drift: Literal["on", "open_breaker", "off"] = Field(
        default="on",
        description="detect drift and sudden falls of acceptance by proposer and traffic class, and raise an alarm; "
        "open_breaker: a sudden fall opens the proposer's breaker too",
    )
    region: str = Field(
        default="", max_length=64, description="region of this server, a label of its metrics; empty: no label"
    )
    metrics_tenants: tuple[str, ...] = Field(
        default=(), description="tenants with their own label in metrics; all others are counted as other"
    )
    metrics_vllm_names: bool = Field(
        default=False, description="serve the series that vLLM's dashboards query also under vLLM's names"
    )
    max_body_bytes: int | None = Field(
        default=None,
        ge=1024,
        description="largest request body; default: 256 KiB and 16 bytes for each token of the model's context",
    )
    allow_origin: tuple[str, ...] = Field(
        default=(),
        description="origins of web pages whose scripts may call the server, e.g. https://chat.example.org; *: all, "
        "where keys are asked for",
    )
    lenient: tuple[Leniency, ...] = Field(
        default=("fields",),
        description="what is done for a request that would be refused, or read otherwise: fields: those that are "
        "unknown or change nothing are named in the header `warning`; clamp_max_tokens: max_tokens is shortened to "
        "what the context has room for; open_objects: answers may have properties that their schema does not list, "
        "where it leaves out additionalProperties; move_date, move_tokens_left: such lines of system texts are moved "
        "to the end of the conversation, so that more of it is in the prefix cache; none: nothing of this",
    )
    limits: LimitTerms = Field(
        default=LimitTerms(), description=f"bounds that few servers change: {described(LimitTerms)}"
    )
    max_in_engine: int | None = Field(
        default=None,
        ge=1,
        description="sequences admitted to the engine at once; default: max_requests, of each replica",
    )
    requests_per_minute: dict[str, int] = Field(
        default_factory=dict, description="limits by key, tier:NAME, key:ID, tenant or tenant:NAME; default: no limit"
    )
    tokens_per_minute: dict[str, int] = Field(
        default_factory=dict, description="limits of prompt and answer tokens, by the same names; default: no limit"
    )
    request_timeout_s: float | None = Field(
        default=None, gt=0, description="longest time of a request; x-request-timeout-ms may shorten it; default: none"
    )
    stream_ping_s: float = Field(
        default=10.0, ge=0, description="longest silence of a stream, seconds; then it says that it lives; 0: no pings"
    )
    shed_after_s: tuple[float, ...] = Field(
        default=(2.0, 5.0, 10.0, 20.0),
        description="seconds in the queue at which drafts get shorter, speculation stops, batch requests wait, and "
        "low tiers are refused; none: never",
    )
    response_cache_bytes: int = Field(
        default=0, ge=0, description="memory of the response cache for deterministic requests; 0 disables it"
    )
    idempotency_ttl_s: float = Field(
        default=600.0, ge=0, description="seconds for which a retry with the same Idempotency-Key gets the same answer"
    )
    idempotency_bytes: int = Field(
        default=64 * 2**20, ge=0, description="memory of the answers to requests with an Idempotency-Key"
    )
    batch_retention_days: float = Field(
        default=30.0,
        gt=0,
        description="days until files of batches and their results are deleted; a client may ask for fewer",
    )
    batch_file_bytes: int = Field(
        default=4 * 2**30, ge=0, description="most bytes of the files of one tenant; 0: no files are taken"
    )
    corpus_tokens: int = Field(
        default=500_000, ge=0, description="most tokens of the corpora of one tenant or route; 0: none are taken"
    )
    response_retention_days: float = Field(
        default=0.0,
        ge=0,
        description="days until responses are deleted that /v1/responses stores unless a client says `store: false`; "
        "0: none is stored",
    )
    response_bytes: int = Field(
        default=2**30, ge=0, description="most bytes of stored responses of one tenant; the oldest ones make room"
    )
    allow_drills: bool = Field(default=False, description="let `prolepsis drill` inject faults, for the role admin")
    shutdown_s: float = Field(
        default=10.0,
        ge=0,
        description="seconds in which requests in flight may finish after a stop signal; then they are aborted",
    )
    count_rejected_prediction_tokens: bool = Field(
        default=True, description="count rejected prediction tokens in usage.completion_tokens, as OpenAI does"
    )

    @field_validator("max_replicas")
    @classmethod
    def _bounds(cls, most: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("replicas", 1)
        if most is not None and most < least:
            raise ValueError(f"allowed: {least} or more, as replicas is {least}")
        return most

    @field_validator("audit_text_days_by_tenant", "writers")
    @classmethod
    def _by_name(cls, given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        (writers_by_name if info.field_name == "writers" else days_by_tenant)(given)
        return given

    @field_validator("shed_after_s")
    @classmethod
    def _levels(cls, ages: tuple[float, ...]) -> tuple[float, ...]:
        if len(ages) not in (0, 4) or list(ages) != sorted(ages) or any(age <= 0 for age in ages):
            raise ValueError("allowed: none, or four rising numbers above 0")
        return ages
