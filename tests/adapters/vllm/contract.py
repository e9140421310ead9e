"""What the real vLLM must do behind our client: `python contract.py MODEL_FOLDER`, with its own Python, prints JSON."""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx2

from prolepsis.adapters.vllm.start import start_vllm
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Aborted, Event, Failed, Terminal, Tokens
from prolepsis.core.messages import Abort, ApplyPlan, StopRun
from prolepsis.core.plan import PANIC_PLAN, SpecPlan
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.start import Running
from tests.server.application import build

PROMPT = tuple([10, 11, 12, 13, 14, 15] * 8)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
ON, OFF = SpeculationChoice("always"), SpeculationChoice("off")
Answer = tuple[list[list[int]], Terminal]


async def answer(client: EngineClient, source: GenerateRequest) -> Answer:
    """Return the tokens of each sample, and the terminal event."""
    samples: list[list[int]] = [[] for _ in range(source.n)]
    last: Event | None = None
    async for last in client.generate(source):
        if isinstance(last, Tokens):
            assert last.position == len(samples[last.index]), "the events follow one another"
            samples[last.index] += last.token_ids
    assert isinstance(last, Terminal), "the last event is terminal"
    return samples, last


async def per_request(client: EngineClient) -> dict[str, object]:
    """Speculation off, on, with a depth and in shadow, request by request."""
    found: dict[str, object] = {}
    choices = {
        "off": OFF,
        "on": ON,
        "depth": replace(ON, num_speculative_tokens=2),
        "shadow": SpeculationChoice("shadow"),
    }
    for name, choice in choices.items():
        [tokens], end = await answer(client, GenerateRequest(name, PROMPT, GREEDY, speculation=choice))
        deepest = max((len(counts.per_position) for counts in end.stats.proposers.values()), default=0)
        compared = sum(counts.num_draft_tokens for counts in end.stats.shadow.values())
        found[name] = {
            "mode": end.stats.mode.mode,
            "reason": end.stats.mode.reason,
            "drafted": end.stats.num_draft_tokens,
            "deepest": deepest,
            "compared": compared,
            "tokens": len(tokens),
        }
    return found


async def in_flight(client: EngineClient) -> dict[str, object]:
    """A plan, a stopped run, an abort and a deadline that come while requests run."""
    found: dict[str, object] = {}
    endless = replace(GREEDY, max_tokens=400)
    for name in ("plan", "run"):
        stream = client.generate(GenerateRequest(name, PROMPT, endless, speculation=replace(ON, rollout_run="r")))
        events = [await anext(stream) for _ in range(4)]
        client.send(ApplyPlan(PANIC_PLAN)) if name == "plan" else client.send(StopRun("r"))
        events += [event async for event in stream]
        tail = [event for event in events[12:] if isinstance(event, Tokens)]
        found[name] = {"accepted_after": sum(len(event.accepted_by) for event in tail), "events": len(tail)}
        client.send(ApplyPlan(SpecPlan()))
    stream = client.generate(GenerateRequest("abort", PROMPT, endless))
    await anext(stream)
    client.send(Abort("abort"))
    found["abort"] = isinstance([event async for event in stream][-1], Aborted)
    _, end = await answer(client, replace(GenerateRequest("late", PROMPT, endless), deadline_s=0.0))
    found["deadline"] = isinstance(end, Failed)
    return found


async def parameters(client: EngineClient) -> dict[str, object]:
    """Parameters that stock vLLM refuses or samples otherwise with drafts."""
    biased = replace(GREEDY, logit_bias=((42, 100.0),), max_tokens=8)
    [tokens], _ = await answer(client, GenerateRequest("bias", PROMPT, biased, speculation=ON))
    spec = GrammarSpec("choice", '["yes, indeed", "yes, perhaps"]')
    [chosen], end = await answer(client, GenerateRequest("choice", PROMPT, SamplingParams(seed=1), grammar=spec))
    params = SamplingParams(seed=2, max_tokens=20, ignore_eos=True, min_p=0.01, logprobs=2)
    samples, _ = await answer(client, GenerateRequest("n", PROMPT, params, n=2, speculation=OFF))
    again, _ = await answer(client, GenerateRequest("again", PROMPT, params, n=2, speculation=OFF))
    return {
        "bias": set(tokens) == {42},
        "choice": chosen,
        "choice_accepted": end.stats.num_accepted,
        "samples_differ": samples[0] != samples[1],
        "seed_repeats": sum(a == b for a, b in zip(samples, again, strict=True)),
    }


async def limits(client: EngineClient) -> dict[str, object]:
    """The end of the context, prompts in several passes, and more requests than may run."""
    long = tuple(PROMPT[i % len(PROMPT)] for i in range(960))
    [tokens], end = await answer(client, GenerateRequest("long", long, replace(GREEDY, max_tokens=400), speculation=ON))
    sources = [
        GenerateRequest(
            f"crowd {i}", long[: 40 + 35 * i], replace(GREEDY, max_tokens=20 + i), speculation=[ON, OFF][i % 2]
        )
        for i in range(10)
    ]
    crowd = await asyncio.gather(*(answer(client, source) for source in sources))
    running = client.generate(GenerateRequest("beside", PROMPT, replace(GREEDY, max_tokens=200), speculation=ON))
    await anext(running)
    short = await asyncio.gather(
        *(answer(client, GenerateRequest(f"short {i}", PROMPT[:1], replace(GREEDY, max_tokens=9))) for i in range(3))
    )
    client.send(Abort("beside"))
    assert isinstance([event async for event in running][-1], Aborted)
    return {
        "one_token": [len(samples[0]) for samples, _ in short],
        "at_the_end": len(tokens),
        "finished": type(end).__name__,
        "crowd": [len(samples[0]) for samples, _ in crowd],
        "crowd_plain": sum(end.stats.num_draft_tokens for _, end in crowd[1::2]),
    }


async def over_http(running: Running) -> dict[str, object]:
    """OpenAI's API around it: each form as one answer, and as the stream that must say the same."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema, "strict": True}}
    forms: dict[str, dict[str, object]] = {
        "text": {"logprobs": True, "top_logprobs": 2, "ignore_eos": True, "max_tokens": 12},
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "plan", "schema": schema}}},
        "tool": {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False},
    }
    app = build(ServerConfig(replay_sample=0.0), running.client, running.tokenizer, Metrics())
    found: dict[str, object] = {}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
        found["ready"] = (await http.get("/health/ready")).json()["exactness"]
        for name, form in forms.items():
            body = {"model": running.client.info.model, "max_tokens": 200, "seed": 3, **form}
            body |= {"messages": [{"role": "user", "content": "weather?"}], "speculation": {"mode": "off"}}
            answered = await http.post("/v1/chat/completions", json=body)
            assert answered.status_code == 200, answered.text
            whole = answered.json()["choices"][0]
            stream = (await http.post("/v1/chat/completions", json=body | {"stream": True})).text
            found[name] = {"whole": _said(whole["message"]), "stream": _said(_joined(stream))}
        refused = await http.post("/v1/chat/completions", json=body | {"speculation": {"proposer": "draft_head"}})
        found["refused"] = refused.status_code
    return found


def _said(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    return str(calls[0]["function"]["arguments"] if calls else message["content"])


def _joined(stream: str) -> dict[str, Any]:
    """Return the message that a stream of server-sent events amounts to."""
    content, arguments = "", ""
    for line in stream.split("\n\n"):
        if line.startswith("data: {"):
            delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
            content += delta.get("content") or ""
            arguments += "".join(call["function"].get("arguments", "") for call in delta.get("tool_calls", ()))
    return {"content": content, "tool_calls": [{"function": {"arguments": arguments}}] if arguments else None}


async def main(folder: str) -> None:
    running = start_vllm(
        EngineConfig(
            model=folder,
            engine="vllm",
            max_requests=4,
            max_step_tokens=64,
            max_model_len=1024,
            kv_memory="64MiB",
            shadow_cost=1.0,
        )
    )
    client = running.client
    report: dict[str, object] = {"exactness": client.info.exactness, "ready": client.health().ready}
    for part in (per_request, in_flight, parameters, limits):
        report[part.__name__] = await part(client)
    report["over_http"] = await over_http(running)
    report["left_running"] = client.health().num_running
    await client.close()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    configure_logs("warning")
    asyncio.run(main(sys.argv[1]))
