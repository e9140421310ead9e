"""Real engines over the table model that can be killed, and a mixed load of which every answer is known."""

import asyncio
import os
import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Event, Finished, Tokens
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.engine.drafting.proposers.grammar import GrammarProposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.step import Engine
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.remote.link import HostLink
from tests.engine.text.grammar.tiny import RECORD, few_tokens, grammars, json_schema
from tests.exact.cuts import Answer, answers_of
from tests.exact.serving import setup_of
from tests.fakes import VOCAB, build_as, terminals

TOOL = GrammarSpec("lark", 'start: "{" "\\"a\\":" %json {"type": "integer", "maximum": 1010, "minimum": 0} "}"')
_KINDS: dict[str, GenerateRequest] = {
    name: GenerateRequest(name, tuple((i * len(name)) % VOCAB for i in range(40)), params, n=n, grammar=grammar)
    for name, params, n, grammar in (
        ("greedy", SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True), 1, None),
        ("sampled", SamplingParams(max_tokens=60, seed=3, ignore_eos=True, logprobs=2), 1, None),
        ("schema", SamplingParams(max_tokens=60, seed=4), 1, json_schema(RECORD)),
        ("tool", SamplingParams(max_tokens=60, seed=5), 1, TOOL),
        ("two samples", SamplingParams(max_tokens=40, seed=6, min_tokens=9, stop_token_ids=(3, 5)), 2, None),
        (
            "penalties",
            SamplingParams(
                temperature=0.7, frequency_penalty=0.6, repetition_penalty=1.2, max_tokens=60, seed=7, ignore_eos=True
            ),
            1,
            None,
        ),
        ("stops", SamplingParams(max_tokens=60, seed=8, stop=("ab", "cde", "x"), min_tokens=12), 1, None),
        ("biased", SamplingParams(max_tokens=60, seed=9, ignore_eos=True, logit_bias=((4, 3.0),)), 2, None),
    )
}
LOAD = tuple(
    replace(source, request_id=f"{name} {i}", params=replace(source.params, seed=source.params.seed + 100 * i))
    for name, source in _KINDS.items()
    for i in range(2)
)
"""Sixteen requests with twenty samples."""


class Mortal(Engine):
    """Ends with its next step once `kill` is set, or after so many steps, as if its thread had met its end."""

    kill: threading.Event
    last_step: int | None = None

    def step(self) -> list[Event]:
        if self.kill.is_set() or self.timings.num_steps == self.last_step:
            raise SystemExit("killed")
        return super().step()


def engine() -> ThreadEngineClient:
    """Return an engine that drafts, with grammars of its own: their tables belong to its thread."""
    proposers = [GrammarProposer(), SuffixProposer(), PromptLookupProposer(min_match=1)]
    setup = setup_of(proposers=proposers, grammars=grammars(few_tokens()), max_sequences=24, num_pages=128)
    made = build_as(Mortal, setup)
    made.kill = threading.Event()
    return ThreadEngineClient(made)


def kill(client: EngineClient, after_steps: int | None = None) -> None:
    """End an engine now, or after so many of its steps: it may be far ahead of those who read its events."""
    assert isinstance(client, ThreadEngineClient)
    assert isinstance(client.engine, Mortal)
    client.engine.last_step = after_steps
    if after_steps is None:
        client.engine.kill.set()


class Watcher(Protocol):
    """Is told of every event of a load."""

    def see(self) -> None: ...


class Killer:
    """Kills engines after so many events of all streams."""

    def __init__(self, seed: int, *victims: EngineClient, num_events: int = 300) -> None:
        self.victims = list(victims)
        chance = random.Random(seed)
        self._after = sorted(chance.randrange(num_events) for _ in victims)
        self._num_seen = 0

    def strike_after(self, num_events: int) -> None:
        """Kill the next victim after so many more events."""
        self._after.append(self._num_seen + num_events)

    def see(self) -> None:
        self._num_seen += 1
        while self._after and self._num_seen > self._after[0]:
            self._after.pop(0)
            kill(self.victims.pop(0))


class ProcessKiller:
    """Kills the process that serves after so many events."""

    def __init__(self, victim: EngineClient, after: int) -> None:
        self._victim: EngineClient | None = victim
        self._left = after

    def see(self) -> None:
        self._left -= 1
        if self._left < 0 and isinstance(self._victim, HostLink) and self._victim.process:
            os.kill(self._victim.process.pid, signal.SIGKILL)
            self._victim = None


async def serve(
    client: EngineClient, sources: Sequence[GenerateRequest], killer: Watcher | None = None
) -> dict[str, list[Event]]:
    """Let all requests run at once and return the events of each."""

    async def one(source: GenerateRequest) -> list[Event]:
        events = list[Event]()
        async for event in client.generate(source):
            events.append(event)
            if killer is not None:
                killer.see()
        return events

    found = await asyncio.gather(*map(one, sources))
    return {source.request_id: events for source, events in zip(sources, found, strict=True)}


async def undisturbed() -> dict[str, Answer]:
    """Return the answers of one engine that nothing happens to."""
    client = engine()
    try:
        found = await serve(client, LOAD)
    finally:
        await client.close()
    return {name: answers_of(events)[name] for name, events in found.items()}


def check(found: dict[str, list[Event]], expected: dict[str, Answer]) -> int:
    """Prove that every stream is whole and ended once; return how many went on in another engine."""
    num_continued = 0
    for name, events in found.items():
        end = terminals(events)[name]
        assert isinstance(end, Finished), end
        assert answers_of(events)[name] == expected[name], name
        assert end.stats.num_output_tokens == sum(len(e.token_ids) for e in events if isinstance(e, Tokens))
        num_continued += bool(end.stats.continued)
    return num_continued
