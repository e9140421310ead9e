"""What a step costs with a part of speculation and without: two engines that step in turns, on one model.

Usage: python -m benchmarks.paired_steps ROW... [--at-once 1,8] [--tokens 48] [--temperature 0] [--rounds 3]
                                         [--prompts FILE] [--every 1]

ROW:
- auto: as served by default, against the same engine with speculation off: whether drafts pay.
- off: speculation off by policy, with the shipped head and all proposers loaded, against an engine without proposers.
- shadow: suffix in shadow, bounded as served, against the same engine with speculation off.
- same: an engine without proposers against another: what the comparison itself is worth.

Both step within milliseconds of each other on the same prompts, so that a machine others use too is as fast for both.
A request of half to all of `--tokens` begins where one ends, as where clients wait for their answers; each round has
every prompt once. Told are the time of all steps and that of decoding steps, second engine over first: above 1, the
first is faster. Median and range over rounds; where both engines decode step for step, the median ratio of steps too.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Failed, Finished, Tokens
from prolepsis.core.messages import Submit
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.engine.build import assemble
from prolepsis.engine.models.heads.registry import head_for
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.engine.step import Engine
from prolepsis.lab.bench.prompts import encode_prompts, load_prompts

CONFIG = EngineConfig(max_model_len=2048, kv_memory="192MiB")
BARE = CONFIG.model_copy(update={"num_speculative_tokens": 0})
OFF = SpeculationChoice("off")


@dataclass
class Arm:
    """An engine, what its requests may do, and one round of it."""

    engine: Engine
    choice: SpeculationChoice
    to_ask: list[GenerateRequest] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    """Requests without a token so far."""
    num_live: int = 0
    answers: dict[str, list[int]] = field(default_factory=dict)
    all_ms: float = 0.0
    decoding_ms: list[float] = field(default_factory=list)

    def begin(self, requests: Sequence[GenerateRequest]) -> None:
        self.to_ask = list(requests)[::-1]
        self.answers = {request.request_id: [] for request in requests}
        self.all_ms, self.decoding_ms = 0.0, []

    @property
    def is_busy(self) -> bool:
        return bool(self.to_ask or self.num_live)

    def step(self, at_once: int) -> None:
        while self.to_ask and self.num_live < at_once:
            request = self.to_ask.pop()
            self.engine.send(Submit(request, self.engine.clock()))
            self.unread.add(request.request_id)
            self.num_live += 1
        decodes = not self.unread
        began = time.perf_counter()
        events = self.engine.step()
        took = 1000.0 * (time.perf_counter() - began)
        self.all_ms += took
        if decodes:
            self.decoding_ms.append(took)
        for event in events:
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Tokens):
                self.answers[event.request_id] += event.token_ids
                self.unread.discard(event.request_id)
            self.num_live -= isinstance(event, Finished)


def arms(row: str, loaded: LoadedModel) -> tuple[Arm, Arm]:
    if row == "same":
        return _bare(loaded), _bare(loaded)
    if row == "shadow":
        config = CONFIG.model_copy(update={"proposers": ("suffix",)})
        shadow = SpeculationChoice("shadow", proposers=("suffix",))
        return Arm(assemble(config, loaded), shadow), Arm(assemble(config, loaded), OFF)
    head = head_for("auto", loaded)
    served = assemble(CONFIG, loaded, head=head)
    if row == "off":
        return Arm(served, OFF), _bare(loaded)
    return Arm(served, SpeculationChoice()), Arm(assemble(CONFIG, loaded, head=head), OFF)


def requests(
    prompts: Sequence[tuple[int, ...]],
    choice: SpeculationChoice,
    round_number: int,
    num_tokens: int,
    temperature: float,
) -> list[GenerateRequest]:
    """Return a request for each prompt, with other noise each round; none finds another's prompt cached."""
    shortest = num_tokens // 2
    return [
        GenerateRequest(
            name := f"{round_number} {i}",
            prompt,
            SamplingParams(
                temperature=temperature,
                top_p=0.95 if temperature else 1.0,
                max_tokens=shortest + i * 7 % (num_tokens - shortest + 1),
                ignore_eos=True,
                seed=1000 * round_number + i,
            ),
            speculation=choice,
            cache_salt=name,
        )
        for i, prompt in enumerate(prompts)
    ]


def compare(pair: tuple[Arm, Arm], at_once: int) -> None:
    """Let both answer the requests they were given."""
    number = 0
    while any(arm.is_busy for arm in pair):
        for arm in pair if number % 2 else pair[::-1]:
            if arm.is_busy:
                arm.step(at_once)
        number += 1


@dataclass
class Round:
    """Second engine over first, and the milliseconds of a median decoding step of each."""

    whole: float
    decoding: float
    step: float
    """Median over decoding steps, where the engines decode step for step."""
    ms: tuple[float, float]


def told(pair: tuple[Arm, Arm]) -> Round:
    one, other = pair
    assert one.answers == other.answers, "both engines give the same tokens"
    steps = [b / a for a, b in zip(one.decoding_ms, other.decoding_ms, strict=False)]
    return Round(
        other.all_ms / one.all_ms,
        sum(other.decoding_ms) / sum(one.decoding_ms),
        statistics.median(steps),
        (statistics.median(one.decoding_ms), statistics.median(other.decoding_ms)),
    )


def shown(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _bare(loaded: LoadedModel) -> Arm:
    return Arm(assemble(BARE, loaded), SpeculationChoice())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=["auto", "off", "shadow", "same"])
    parser.add_argument("--at-once", default="1,8", help="requests at once, separated by commas")
    parser.add_argument("--tokens", type=int, default=48, help="of the longest answers")
    parser.add_argument("--temperature", type=float, default=0.0, help="above 0: with top-p 0.95")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=Path, help="as of `prolepsis bench`; default: those of the package")
    parser.add_argument("--every", type=int, default=1, help="take one of so many prompts, others each round")
    args = parser.parse_args()
    configure_logs("error")
    loaded = load_model(CONFIG)
    prompts = [prompt.token_ids for prompt in encode_prompts(load_prompts(args.prompts), loaded.tokenizer)]
    for row in args.rows:
        for at_once in map(int, args.at_once.split(",")):
            pair, rounds = arms(row, loaded), []
            for number in range(args.rounds):
                chosen = prompts[number % args.every :: args.every]
                for arm in pair:
                    arm.begin(requests(chosen, arm.choice, number, args.tokens, args.temperature))
                compare(pair, at_once)
                rounds.append(told(pair))
            whole = shown([one.whole for one in rounds])
            decoding = shown([one.decoding for one in rounds])
            single = "" if row == "auto" else f", median step {shown([one.step for one in rounds])}"
            first, second = (statistics.median(one.ms[i] for one in rounds) for i in (0, 1))
            line = f"all steps {whole}, decoding {decoding}{single}, steps {first:.2f} and {second:.2f} ms"
            print(f"{row:<7} {at_once:>2} at once: {line}", flush=True)


if __name__ == "__main__":
    main()
