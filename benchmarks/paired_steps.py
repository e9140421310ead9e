"""What a step costs with control's part of speculation and without: two engines that step in turns, on one model.

Usage: python -m benchmarks.paired_steps ROW... [--at-once 1,8] [--tokens 48]

ROW:
- off: speculation off by policy, with the shipped head and all proposers loaded, against an engine without proposers.
- shadow: suffix in shadow, bounded as served, against the same engine with speculation off.
- same: an engine without proposers against another: what the comparison itself is worth.

Both step within milliseconds of each other on the same prompts, so that a machine others use too is as fast for both.
Told are the ratio of the time of all steps (prompts included), and the median ratio of decoding steps, second engine
over first: above 1, the first is faster.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.cli.bench.prompts import encode_prompts, load_prompts
from prolepsis.core.config import EngineConfig
from prolepsis.core.messages import Submit
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.build import assemble
from prolepsis.engine.step import Engine
from prolepsis.models.heads.registry import head_for
from prolepsis.models.load import LoadedModel, load_model
from prolepsis.telemetry.logs import configure_logs

CONFIG = EngineConfig(max_model_len=1024, kv_memory="128MiB")
BARE = CONFIG.model_copy(update={"num_speculative_tokens": 0})
SETTLED = 6
"""Steps of a wave after which all prompts are read and every row decodes."""


@dataclass
class Arm:
    """An engine, what its requests may do, and the milliseconds of its steps."""

    engine: Engine
    choice: SpeculationChoice
    all_ms: list[float] = field(default_factory=list)
    decoding_ms: list[float] = field(default_factory=list)

    def step(self, number: int) -> None:
        if self.engine.has_work:
            began = time.perf_counter()
            self.engine.step()
            took = 1000.0 * (time.perf_counter() - began)
            self.all_ms.append(took)
            if number > SETTLED:
                self.decoding_ms.append(took)


def arms(row: str, loaded: LoadedModel) -> tuple[Arm, Arm]:
    off = SpeculationChoice("off")
    if row == "off":
        return Arm(assemble(CONFIG, loaded, head=head_for("auto", loaded)), off), _bare(loaded)
    if row == "shadow":
        config = CONFIG.model_copy(update={"proposers": ("suffix",)})
        shadow = SpeculationChoice("shadow", proposers=("suffix",))
        return Arm(assemble(config, loaded), shadow), Arm(assemble(config, loaded), off)
    return _bare(loaded), _bare(loaded)


def compare(pair: tuple[Arm, Arm], prompts: Sequence[tuple[int, ...]], at_once: int, num_tokens: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    for first in range(0, len(prompts), at_once):
        for arm in pair:
            for i, prompt in enumerate(prompts[first : first + at_once], first):
                source = GenerateRequest(
                    f"{at_once} {i}", prompt, params, speculation=arm.choice, cache_salt=f"{at_once} {i}"
                )
                arm.engine.send(Submit(source, arm.engine.clock()))
        number = 0
        while any(arm.engine.has_work for arm in pair):
            for arm in pair if number % 2 else pair[::-1]:
                arm.step(number)
            number += 1


def _bare(loaded: LoadedModel) -> Arm:
    return Arm(assemble(BARE, loaded), SpeculationChoice())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=["off", "shadow", "same"])
    parser.add_argument("--at-once", default="1,8", help="requests at once, separated by commas")
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    configure_logs("error")
    loaded = load_model(CONFIG)
    prompts = [prompt.token_ids for prompt in encode_prompts(load_prompts(None), loaded.tokenizer)]
    for row in args.rows:
        for at_once in map(int, args.at_once.split(",")):
            pair = arms(row, loaded)
            compare(pair, prompts, at_once, args.tokens)
            one, other = pair
            whole = sum(other.all_ms) / sum(one.all_ms)
            ratios = [b / a for a, b in zip(one.decoding_ms, other.decoding_ms, strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            shown = f"{statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f}, {len(ratios)})"
            ms = f"{statistics.median(one.decoding_ms):.2f} and {statistics.median(other.decoding_ms):.2f} ms"
            print(f"{row:<7} {at_once:>2} at once: all steps {whole:.3f}, decoding steps {shown}, {ms}", flush=True)


if __name__ == "__main__":
    main()
