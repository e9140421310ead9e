"""How many answers does their acceptance mark, where they loop, are garbled, or are neither? Beside a rule on the text.

Usage: python -m benchmarks.quality_alarm [--prompts FILE...] [--rounds 5] [--staged 25] [--tokens 200] [--at-once 8]
    [--model NAME] [--json FILE]

All prompts are answered once a round, at temperature 0.2 and top-p 0.9; the first round is what the norm begins with.
Among the later ones, `--staged` prompts are answered greedily with ignored ends and four times as many tokens, where
small models come to repeat themselves, and as many at temperature 2, where their answers are nonsense. The rule on the
text marks an answer whose end stands there three times (`training.synthesis.loop_end`); it cannot know nonsense. A
staged answer without a loop counts as `went on`. The prompts are the shipped ones, and those of files.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.script import keep, options
from prolepsis.control.health.quality import QualityWatch
from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Finished, Tokens
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.engine.start import Running, start_engine
from prolepsis.lab.measure.prompts import encode_prompts, load_prompts
from prolepsis.training.synthesis import loop_end

Kind = Literal["learned", "ordinary", "looping", "garbled"]


@dataclass(frozen=True, slots=True)
class Asked:
    kind: Kind
    request: GenerateRequest


def asked(prompts: list[tuple[int, ...]], rounds: int, staged: int, tokens: int) -> Iterator[Asked]:
    """Yield the requests of all rounds; those after the first one stand in random order."""
    chance = random.Random(1)

    def ask(kind: Kind, number: int, prompt: tuple[int, ...], round_: int) -> Asked:
        params = {
            "looping": SamplingParams(temperature=0.0, max_tokens=4 * tokens, ignore_eos=True),
            "garbled": SamplingParams(temperature=2.0, seed=number, max_tokens=tokens),
        }.get(kind, SamplingParams(temperature=0.2, top_p=0.9, seed=number, max_tokens=tokens))
        name = f"{kind}-{round_}-{number}"  # a round does not know the answers of others
        return Asked(kind, GenerateRequest(name, prompt, params, cache_salt=f"{round_}", traffic_class="staged"))

    yield from (ask("learned", number, prompt, 0) for number, prompt in enumerate(prompts))
    later = [ask("ordinary", n, prompt, round_) for round_ in range(1, rounds) for n, prompt in enumerate(prompts)]
    for kind in ("looping", "garbled"):
        drawn = chance.sample(prompts, min(staged, len(prompts)))
        later += [ask(kind, number, prompt, rounds) for number, prompt in enumerate(drawn)]
    yield from chance.sample(later, len(later))


async def answered(running: Running, one: Asked, watch: QualityWatch) -> tuple[str, str, bool]:
    """Return the kind of a request, the quality of its answer, and whether the rule on the text marks it."""
    tokens: list[int] = []
    async for event in running.client.generate(one.request):
        if isinstance(event, Tokens):
            tokens += event.token_ids
        else:
            assert isinstance(event, Finished), event
            quality = watch.observe(one.request, event.stats, {0: tokens})
    repeats, kind = loop_end(tokens) is not None, one.kind
    return "went on" if kind == "looping" and not repeats else kind, quality, repeats


async def run(running: Running, requests: list[Asked], at_once: int) -> list[tuple[str, str, bool]]:
    watch, places = QualityWatch(), asyncio.Semaphore(at_once)

    async def one(each: Asked) -> tuple[str, str, bool]:
        async with places:
            return await answered(running, each, watch)

    found = await asyncio.gather(*map(one, requests))
    await running.client.close()
    return found


def main() -> None:
    args = options(__doc__, prompts=[Path()], rounds=5, staged=25, tokens=200, at_once=8, model=EngineConfig().model)
    configure_logs("error")
    running = start_engine(EngineConfig(model=args.model))
    texts = [prompt for file in [None, *filter(Path.is_file, args.prompts)] for prompt in load_prompts(file)]
    prompts = [each.token_ids for each in encode_prompts(texts, running.tokenizer)]
    requests = list(asked(prompts, args.rounds, args.staged, args.tokens))
    found = asyncio.run(run(running, requests, args.at_once))
    figures = {}
    for kind in sorted({kind for kind, _, _ in found}):
        of = [(quality, repeats) for each, quality, repeats in found if each == kind]
        marks = Counter(f"{quality}{', repeats' if repeats else ''}" for quality, repeats in of)
        figures[kind] = {"answers": len(of), "by text": sum(repeats for _, repeats in of), "marks": dict(marks)}
        print(f"{kind:<9} {len(of):4} answers, {figures[kind]['by text']:4} by text; by acceptance: {dict(marks)}")
    keep(args, figures=figures)


if __name__ == "__main__":
    main()
