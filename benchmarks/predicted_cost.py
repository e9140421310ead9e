"""Does plain decoding cost what it is predicted to? Device milliseconds per token of plain and speculating requests.

Usage: python -m benchmarks.predicted_cost [--tokens 64] [--stride 3] [--repeats 2] [--concurrency 1,8] [--json OUT]

Every prompt is asked twice in each round, plain and speculating, in random order and all through one engine, as arms of
a rollout are: at concurrency 8 they share passes. `control` is what the plain ones cost, `predicted` what the model
says that the speculating ones had cost plainly, `measured` what they cost. Requests that are not counted keep the
engine as busy to the end.
"""

import argparse
import asyncio
import json
import random
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats
from prolepsis.engine.start import start_engine
from prolepsis.lab.bench.prompts import encode_prompts, load_prompts
from prolepsis.lab.bench.provenance import provenance
from prolepsis.server.cli.ask import ask, in_flight

KINDS = ("prefill", "plain", "verify", "propose", "host")
Round = dict[str, float]


async def one_round(
    client: EngineClient, prompts: Sequence[tuple[int, ...]], args: argparse.Namespace, concurrency: int, seed: int
) -> Round:
    """Return milliseconds per token by arm, and what of them was drafting and verifying."""
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True)

    def request(name: str, prompt: tuple[int, ...], *, on: bool) -> GenerateRequest:
        name, choice = f"{concurrency} {seed} {name} {on}", SpeculationChoice("auto" if on else "off")
        return GenerateRequest(name, prompt, params, cache_salt=f"{concurrency} {seed} {on}", speculation=choice)

    requests = [request(str(i), prompt, on=on) for i, prompt in enumerate(prompts) for on in (True, False)]
    random.Random(seed).shuffle(requests)
    last = [request(f"last {i}", prompts[i % len(prompts)], on=i % 2 == 0) for i in range(2 * (concurrency - 1))]
    answers = await in_flight([partial(ask, client, one) for one in [*requests, *last]], concurrency)
    arms: dict[bool, list[RequestStats]] = {True: [], False: []}
    for one, answer in zip(requests, answers[: len(requests)], strict=True):
        arms[one.speculation.enabled].append(answer.stats)
    return {
        **{f"control_{kind}": _per_token(arms[False], kind) for kind in KINDS},
        **{f"speculating_{kind}": _per_token(arms[True], kind) for kind in KINDS},
        "control": _per_token(arms[False], "total"),
        "predicted": _per_token(arms[True], "predicted_plain"),
        "measured": _per_token(arms[True], "total"),
    }


def _per_token(stats: Sequence[RequestStats], what: str) -> float:
    return 1000.0 * sum(float(getattr(one.device, what)) for one in stats) / sum(one.num_output_tokens for one in stats)


async def measure(args: argparse.Namespace) -> dict[str, list[Round]]:
    running = start_engine(EngineConfig())
    client = running.client
    prompts = [one.token_ids for one in encode_prompts(load_prompts(None), running.tokenizer)][:: args.stride]
    results = {}
    for concurrency in map(int, args.concurrency.split(",")):
        await one_round(client, prompts[:2], args, concurrency, seed=-1)  # warm
        rounds = [await one_round(client, prompts, args, concurrency, seed) for seed in range(args.repeats)]
        results[str(concurrency)] = rounds
    await client.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--stride", type=int, default=3, help="every so manieth of the shipped prompts")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = asyncio.run(measure(args))
    columns = {
        "control": "control",
        "predicted": "predicted",
        "measured": "measured",
        "verify": "speculating_verify",
        "propose": "speculating_propose",
    }
    print(
        f"{'at once':<8}" + "".join(f"{name:>11}" for name in (*columns, "pred/contr")) + f"{'saved':>8}{'by pred':>9}"
    )
    for concurrency, rounds in results.items():
        found = {name: statistics.median(one[key] for one in rounds) for name, key in columns.items()}
        ratio = statistics.median(one["predicted"] / one["control"] for one in rounds)
        saved, predicted = 1 - found["measured"] / found["control"], 1 - found["measured"] / found["predicted"]
        shown = "".join(f"{value:>11.2f}" for value in found.values())
        print(f"{concurrency:<8}{shown}{ratio:>11.3f}{saved:>8.1%}{predicted:>9.1%}")
    if args.json:
        document = {"provenance": provenance({"first_round": 0}, {}), "ms_per_token": results}
        args.json.write_text(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
