"""What the real vLLM must do behind our client: `python contract.py MODEL_FOLDER`, with its own Python, prints JSON."""

import asyncio
import json
import sys
from dataclasses import replace

from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Aborted, Event, Failed, Terminal, Tokens
from prolepsis.core.plan import PANIC_PLAN, SpecPlan
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.engine.client import EngineClient
from prolepsis.vllm.start import start_vllm

PROMPT = tuple([10, 11, 12, 13, 14, 15] * 8)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
ON, OFF = SpeculationChoice("on"), SpeculationChoice("off")
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
        client.apply_plan(PANIC_PLAN) if name == "plan" else client.stop_run("r")
        events += [event async for event in stream]
        tail = [event for event in events[12:] if isinstance(event, Tokens)]
        found[name] = {"accepted_after": sum(len(event.accepted_by) for event in tail), "events": len(tail)}
        client.apply_plan(SpecPlan())
    stream = client.generate(GenerateRequest("abort", PROMPT, endless))
    await anext(stream)
    client.abort("abort")
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
    long = tuple(PROMPT[i % len(PROMPT)] for i in range(480))
    [tokens], end = await answer(client, GenerateRequest("long", long, replace(GREEDY, max_tokens=400), speculation=ON))
    sources = [
        GenerateRequest(
            f"crowd {i}", long[: 40 + 35 * i], replace(GREEDY, max_tokens=20 + i), speculation=[ON, OFF][i % 2]
        )
        for i in range(10)
    ]
    crowd = await asyncio.gather(*(answer(client, source) for source in sources))
    return {
        "at_the_end": len(tokens),
        "finished": type(end).__name__,
        "crowd": [len(samples[0]) for samples, _ in crowd],
        "crowd_plain": sum(end.stats.num_draft_tokens for _, end in crowd[1::2]),
    }


async def main(folder: str) -> None:
    running = start_vllm(
        EngineConfig(
            model=folder,
            engine="vllm",
            max_requests=4,
            max_step_tokens=64,
            max_model_len=512,
            kv_memory="64MiB",
            shadow_cost=1.0,
        )
    )
    client = running.client
    report: dict[str, object] = {"exactness": client.info.exactness, "ready": client.health().ready}
    for part in (per_request, in_flight, parameters, limits):
        report[part.__name__] = await part(client)
    report["left_running"] = client.health().num_running
    await client.close()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
