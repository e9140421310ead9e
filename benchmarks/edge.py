"""What does a client that drafts see, and what does it gain, near a server and far from it?

Usage: python -m benchmarks.edge [--latency-ms 0 20 50] [--prompts 4] [--tokens 128] [--repeats 3] [--json OUT]

A server with the default model on loopback is asked through a transport that holds back every request, and every part
of every reply, for so many milliseconds; a round trip takes twice as long. Five ways of asking take turns prompt by
prompt, the first one rotates:

- plain: the ordinary stream without speculation.
- server: the ordinary stream; the server drafts by itself.
- edge: `/v1/verify`, and only the client drafts, by prompt lookup over what it has seen of the answer and the prompt.
- both: `/v1/verify`; client and server draft.
- garbage: `/v1/verify`, and the client drafts tokens at random, 32 ahead, all the time: the worst it can do to itself.

Prompts are conversations in which the user asks for an answer again with one change, of which a client can guess much,
and questions, of which it can guess little. All outputs of one prompt and seed are compared. Told are, as medians over
repeats with minimum and maximum: the time to the first provisional and to the first verified token, the share of
provisional tokens that were withdrawn, tokens a second as ratio to `plain` of the same prompt, repeat and latency.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product

import httpx2

from benchmarks.script import keep, options, served
from prolepsis.adapters.edge.client import EdgeClient
from prolepsis.core.config import EngineConfig
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer

MODEL = EngineConfig().model
SERVER = (
    *("--max-model-len", "2048", "--kv-memory", "512MiB", "--draft-head", "none"),
    *("--replay-sample", "0", "--breaker", "off", "--drift", "off", "--log-level", "error"),
)
PASSAGE = (
    "The harbour opens at six. Boats with a permit moor at the north quay, all others at the south quay. "
    "Fuel is sold from eight to noon. Nobody may swim between the quays. The lamp on the mole burns all night, "
    "and its keeper answers calls on channel nine. In a storm the chain across the entrance is closed."
)
EDITS = ("Replace six by seven", "Replace noon by one", "Replace channel nine by channel four", "Replace fuel by ice")
QUESTIONS = (
    "Why is the sky blue?",
    "Write a short poem about rivers.",
    "Explain what a cache is.",
    "How do I bake bread?",
)
MODES = {
    "plain": {"mode": "off"},
    "server": {},
    "edge": {"proposer": "client"},
    "both": {},
    "garbage": {"proposer": "client"},
}
Messages = list[dict[str, str]]


def _edit(change: str) -> Messages:
    return [
        {"role": "user", "content": "Write the notice of our harbour."},
        {"role": "assistant", "content": PASSAGE},
        {"role": "user", "content": f"{change}, and write all of it again."},
    ]


PROMPTS: Mapping[str, Sequence[Messages]] = {
    "edits": [_edit(change) for change in EDITS],
    "questions": [[{"role": "user", "content": question}] for question in QUESTIONS],
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer as its client saw it; times in seconds."""

    text: str
    num_tokens: int
    total_s: float
    first_token_s: float
    first_provisional_s: float | None = None
    num_confirmed: int = 0
    num_withdrawn: int = 0
    num_drafts_sent: int = 0
    num_late: int = 0
    num_accepted: int = 0

    @property
    def rate(self) -> float:
        """Tokens a second, the time to the first one included."""
        return self.num_tokens / self.total_s


@dataclass(frozen=True, slots=True)
class Record:
    """One answer in its place in the run."""

    repeat: int
    latency_ms: float
    kind: str
    arm: str
    ratio: float
    """Of its rate to that of `plain`."""
    seen: Seen


class Garbage(Proposer):
    """Drafts tokens at random."""

    name = "garbage"

    def __init__(self) -> None:
        self._draw = random.Random(0)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        drawn = [tuple(self._draw.randrange(1000, 40_000) for _ in range(limit)) for limit in limits]
        return [chain(tokens, self.name) for tokens in drawn]


class Far(httpx2.AsyncBaseTransport):
    """A transport to a server that is `seconds` away in each direction; its parts arrive in order and undiminished."""

    def __init__(self, seconds: float) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._seconds = seconds

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(self._seconds)
        reply = await self._inner.handle_async_request(request)
        assert isinstance(reply.stream, httpx2.AsyncByteStream)
        delayed = _Delayed(reply.stream, self._seconds)
        await asyncio.sleep(self._seconds)
        return httpx2.Response(reply.status_code, headers=reply.headers, stream=delayed, extensions=reply.extensions)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Delayed(httpx2.AsyncByteStream):
    """Reads a stream at once and hands each part on when it would have arrived."""

    def __init__(self, inner: httpx2.AsyncByteStream, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds
        self._parts: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for part in self._inner:
            self._parts.put_nowait((time.perf_counter() + self._seconds, part))
        self._parts.put_nowait((time.perf_counter() + self._seconds, None))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            due, part = await self._parts.get()
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if part is None:
                return
            yield part

    async def aclose(self) -> None:
        self._reading.cancel()
        await self._inner.aclose()


async def streamed(url: str, body: Mapping[str, object], latency_s: float) -> Seen:
    """Ask for the ordinary stream."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    began, first_s, text, num_tokens = time.perf_counter(), 0.0, "", 0
    async with (
        httpx2.AsyncClient(base_url=url, transport=Far(latency_s), timeout=600) as http,
        http.stream("POST", "/v1/chat/completions", json=asked) as reply,
    ):
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if chunk["choices"]:
                text += chunk["choices"][0]["delta"].get("content") or ""
                first_s = first_s or (time.perf_counter() - began if text else 0.0)
            elif chunk.get("usage"):
                num_tokens = chunk["usage"]["completion_tokens"]
    return Seen(text, num_tokens, time.perf_counter() - began, first_s)


async def drafted(url: str, body: Mapping[str, object], latency_s: float, proposer: Proposer) -> Seen:
    """Ask as a client that drafts."""
    async with EdgeClient(url, proposer=proposer, transport=Far(latency_s)) as client:
        answer = await client.chat(body)
    drafts = answer.document["drafts"]
    assert answer.refusal is None, answer.refusal
    return Seen(
        answer.text,
        answer.document["usage"]["completion_tokens"],
        answer.total_s,
        answer.first_token_s or 0.0,
        answer.first_provisional_s,
        answer.counts.num_confirmed,
        answer.counts.num_withdrawn,
        answer.num_drafts_sent,
        drafts["num_late"],
        drafts["num_accepted"],
    )


async def ask(url: str, arm: str, prompt: Messages, *, seed: int, latency_s: float, tokens: int) -> Seen:
    """Ask once, in the way that `arm` names."""
    body = {
        "model": MODEL,
        "messages": prompt,
        "max_tokens": tokens,
        "seed": seed,
        "speculation": MODES[arm],
        "cache_salt": f"{arm} {seed} {latency_s}",  # nothing is learned from another arm's answer
    }
    if arm in ("plain", "server"):
        return await streamed(url, body, latency_s)
    return await drafted(url, body, latency_s, Garbage() if arm == "garbage" else PromptLookupProposer())


async def measure(url: str, given: argparse.Namespace) -> list[Record]:
    """Return a record of every answer."""
    for arm in MODES:
        await ask(url, arm, PROMPTS["questions"][0], seed=0, latency_s=0.0, tokens=16)  # warms up
    records: list[Record] = []
    arms = list(MODES)
    for repeat, latency_ms in product(range(given.repeats), given.latency_ms):
        for kind, prompts in PROMPTS.items():
            for number, prompt in enumerate(prompts[: given.prompts]):
                turn, seen = (repeat + number) % len(arms), dict[str, Seen]()
                for arm in (*arms[turn:], *arms[:turn]):
                    seen[arm] = await ask(
                        url, arm, prompt, seed=repeat + 1, latency_s=latency_ms / 1000.0, tokens=given.tokens
                    )
                assert len({one.text for one in seen.values()}) == 1, f"outputs differ: {prompt!r}"
                plain = seen["plain"].rate
                records += [Record(repeat, latency_ms, kind, arm, one.rate / plain, one) for arm, one in seen.items()]
    return records


def table(records: Sequence[Record]) -> Iterator[str]:
    """Yield the lines of a Markdown table; a figure is the median of the repeats' medians or shares."""
    names = ("latency, ms", "prompts", "arm", "tokens/s over plain", "first provisional, ms", "first token, ms")
    yield f"| {' | '.join((*names, 'withdrawn', 'late'))} |"
    yield f"|{'---|' * (len(names) + 2)}"
    for latency, kind, arm in dict.fromkeys((one.latency_ms, one.kind, one.arm) for one in records):
        cell = [one for one in records if (one.latency_ms, one.kind, one.arm) == (latency, kind, arm)]
        repeats = [[one for one in cell if one.repeat == repeat] for repeat in sorted({one.repeat for one in cell})]
        answers = [[one.seen for one in rows] for rows in repeats]
        cells = (
            _spread([statistics.median(one.ratio for one in rows) for rows in repeats]),
            _spread([_median_ms(one.first_provisional_s for one in rows) for rows in answers], 0),
            _spread([_median_ms(one.first_token_s for one in rows) for rows in answers], 0),
            _spread([_share(rows, lambda one: (one.num_withdrawn, one.num_confirmed)) for rows in answers]),
            _spread([_share(rows, lambda one: (one.num_late, one.num_drafts_sent - one.num_late)) for rows in answers]),
        )
        yield f"| {latency:g} | {kind} | {arm} | {' | '.join(cells)} |"


def _median_ms(seconds: Iterable[float | None]) -> float | None:
    known = [1000.0 * one for one in seconds if one is not None]
    return statistics.median(known) if known else None


def _share(answers: Iterable[Seen], counts: Callable[[Seen], tuple[int, int]]) -> float | None:
    """Return the share of the first count in both."""
    some, others = map(sum, zip(*map(counts, answers), strict=True))
    return some / (some + others) if some + others else None


def _spread(values: Iterable[float | None], digits: int = 2) -> str:
    known = [one for one in values if one is not None]
    if not known:
        return "-"
    return f"{statistics.median(known):.{digits}f} ({min(known):.{digits}f}-{max(known):.{digits}f})"


def main() -> None:
    given = options(__doc__, latency_ms=[0.0, 20.0, 50.0], prompts=4, tokens=128, repeats=3)
    with served(*SERVER) as url:
        records = asyncio.run(measure(url, given))
    print("\n".join(table(records)))
    keep(given, answers=[asdict(one) for one in records])


if __name__ == "__main__":
    main()
