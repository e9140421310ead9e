"""Upstream engines on loopback that say what they are told, in the words of each API."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from prolepsis.adapters.upstream.api import Api
from prolepsis.adapters.upstream.client import UpstreamClient
from prolepsis.adapters.upstream.llamacpp import LlamacppApi
from prolepsis.adapters.upstream.metrics import UpstreamMetrics
from prolepsis.adapters.upstream.pool import Pool
from prolepsis.adapters.upstream.route import PoolName
from prolepsis.adapters.upstream.sglang import SglangApi
from prolepsis.adapters.upstream.vllm import VllmApi
from prolepsis.core.config import UpstreamApi
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams
from tests.loopback import Reply, Request, serving
from tests.server.fakes import ByteTokenizer

APIS: tuple[UpstreamApi, ...] = ("vllm", "sglang", "llama.cpp")
PROMPT = (104, 105)
DEPTH = 4
INFO = EngineInfo(
    model="tiny",
    forward="upstream-vllm",
    vocab_size=257,
    max_model_len=256,
    fingerprint="fp",
    exactness="normal",
    exactness_reason="a fake",
    proposers=("upstream",),
)


def api_of(name: UpstreamApi) -> Api:
    if name == "llama.cpp":
        return LlamacppApi(ByteTokenizer().encode)
    return SglangApi() if name == "sglang" else VllmApi()


def lines(events: Iterable[Mapping[str, Any]], *, ends: bool = True) -> bytes:
    """Return a stream of server-sent events."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return (text + "data: [DONE]\n\n" * ends).encode()


def _steps(text: bytes) -> list[bytes]:
    return [text[i : i + 2] for i in range(0, len(text), 2)]


Histogram = list[int] | None
"""Drafts with 0, 1, ... accepted tokens."""


def vllm_events(
    text: bytes, drafts: tuple[int, int, int] | None, accepted: Histogram = None, *, finish: str = "stop"
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "text": part.decode(), "token_ids": list(part), "finish_reason": None}]}
        for part in _steps(text)
    ]
    events.append({"choices": [{"index": 0, "text": "", "token_ids": [], "finish_reason": finish}]})
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    figures: dict[str, Any] = dict(zip(names, drafts or (), strict=False))
    if accepted is not None:
        figures["acceptance_histogram"] = accepted
    last = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": len(text)}}
    return [*events, {**last, "metrics": {"speculative_decoding": figures}} if drafts else last]


def sglang_events(
    text: bytes, drafts: tuple[int, int, int] | None, accepted: Histogram = None, *, finish: str = "stop"
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for end in [*range(2, len(text), 2), len(text)]:
        meta: dict[str, Any] = {"completion_tokens": end, "finish_reason": None, "cached_tokens": 1}
        if end == len(text):
            meta["finish_reason"] = {"type": finish}
            names = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")
            meta |= dict(zip(names, drafts or (), strict=False))
            meta |= {} if accepted is None else {"spec_correct_drafts_histogram": accepted}
        events.append({"text": text[:end].decode(), "output_ids": list(text[:end]), "meta_info": meta})
    return events


def llamacpp_events(
    text: bytes, drafts: tuple[int, int, int] | None, accepted: Histogram = None, *, finish: str = "eos"
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"content": chr(byte), "tokens": [byte], "stop": False, "tokens_predicted": i + 1}
        for i, byte in enumerate(text)
    ]
    timings = {"cache_n": 1} | ({"draft_n": drafts[1], "draft_n_accepted": drafts[2]} if drafts else {})
    end = {"content": "", "tokens": [], "stop": True, "tokens_predicted": len(text), "timings": timings}
    return [*events, {**end, "stop_type": "eos" if finish == "stop" else finish}]


_NO_SUCH_THING = {"error": {"message": "no such thing"}}

EVENTS: Mapping[UpstreamApi, Callable[..., list[dict[str, Any]]]] = {
    "vllm": vllm_events,
    "sglang": sglang_events,
    "llama.cpp": llamacpp_events,
}


@dataclass
class FakeUpstream:
    """One pool. What it answers may be changed while it serves."""

    api: UpstreamApi = "vllm"
    text: bytes = b"hello world"
    drafts: tuple[int, int, int] | None = None
    """Drafts, their tokens, and the accepted ones."""
    accepted: Histogram = None
    max_model_len: int = 256
    status: int = 200
    cut_after: int | None = None
    """Its streams break off after so many bytes."""
    healthy: bool = True
    metrics: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of requests for answers, without those of checks."""
    says_logprobs: bool = True
    raw: bytes | None = None
    """Its whole answer, for one that its API does not say."""
    forever: bytes = b""
    """What it says behind `raw` without an end."""
    fault: str = ""
    """What it says in the place of an answer, in its stream."""

    def __call__(self, request: Request) -> Reply:
        if request.path == "/v1/models":
            meta = {"meta": {"n_ctx": self.max_model_len}}
            length = meta if self.api == "llama.cpp" else {"max_model_len": self.max_model_len}
            return _json({"data": [{"id": "tiny", **length}]})
        if request.path == "/health":
            return Reply(200 if self.healthy else 503)
        if request.path == "/metrics":
            return Reply(200 if self.metrics else 404, self.metrics.encode())
        assert request.path == api_of(self.api).path
        body = json.loads(request.body)
        prompt = body.get("input_ids") or body["prompt"]
        if bytes(prompt) == b"Once upon a time":
            return Reply(body=lines(EVENTS[self.api](b"there was", None, finish="length")))
        self.asked.append(body)
        if self.raw is not None or self.status != 200:
            said = Reply(self.status, self.raw, forever=self.forever) if self.raw else None
            return said or _json(_NO_SUCH_THING, self.status)
        text = self.text[len(prompt) - len(PROMPT) :]
        failed = [{"error": {"message": self.fault}}]
        events = failed if self.fault else EVENTS[self.api](text, self.drafts, self.accepted)
        if self.says_logprobs and body.get("return_tokens_as_token_ids"):
            events = [_with_logprobs(event, body["logprobs"]) for event in events]
        return Reply(body=lines(events), cut_after=self.cut_after)


def _with_logprobs(event: dict[str, Any], num: int) -> dict[str, Any]:
    """Return vLLM's event with log-probabilities: of the `num` likeliest and of the token, which is the last of all."""
    for choice in event["choices"]:
        names = [f"token_id:{token}" for token in choice["token_ids"]]
        likeliest = {f"token_id:{i}": -0.1 * (i + 1) for i in range(num)}
        choice["logprobs"] = {
            "tokens": names,
            "token_logprobs": [-2.5 for _ in names],
            "top_logprobs": [{name: -2.5} | likeliest for name in names],
        }
    return event


def _json(value: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"content-type": "application/json"})


def pool_at(url: str, name: PoolName, api: UpstreamApi = "vllm", silent_s: float | None = 10.0) -> Pool:
    return Pool(name, url, api_of(api), ByteTokenizer(), headers={}, silent_s=silent_s)


def client_of(
    pools: Iterable[Pool], api: UpstreamApi = "vllm", registry: CollectorRegistry | None = None
) -> UpstreamClient:
    return UpstreamClient(
        INFO,
        api,
        list(pools),
        ByteTokenizer(),
        UpstreamMetrics(registry or CollectorRegistry()),
        plan=SpecPlan(num_speculative_tokens=DEPTH),
        eos_token_ids=(256,),
    )


@asynccontextmanager
async def two_pools(
    plain: FakeUpstream,
    speculating: FakeUpstream,
    registry: CollectorRegistry | None = None,
    silent_s: float | None = 10.0,
) -> AsyncIterator[UpstreamClient]:
    """Yield a client of two pools that were checked."""
    with serving(plain) as plain_url, serving(speculating) as speculating_url:
        pools = [
            pool_at(plain_url, "plain", plain.api, silent_s),
            pool_at(speculating_url, "speculating", speculating.api, silent_s),
        ]
        for pool in pools:
            pool.up(await asyncio.to_thread(pool.check))
        client = client_of(pools, plain.api, registry)
        yield client
        await client.close()


def request(
    request_id: str = "a", params: SamplingParams | None = None, prompt: tuple[int, ...] = PROMPT, **more: Any
) -> GenerateRequest:
    return GenerateRequest(request_id, prompt, params or SamplingParams(temperature=0.0, max_tokens=64), **more)
