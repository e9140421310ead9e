"""Does the router find prefixes? Cached prompt tokens against round robin on the same engines, and the balance.

Usage: python -m benchmarks.router [--replicas 4] [--at-once 16] [--seeds 5] [--kv-memory 64MiB] [--tenants 8]
       [--users 8] [--turns 2,8] [--system 64,256] [--answer 32] [--trace FILE --calls 1500] [--model NAME --ray]
       [--json OUT]

The load is conversations: tenants have a system prompt each, their users talk for some turns, and each prompt holds
what was said before. With --trace it is requests of the Mooncake trace in their order, all lengths divided by 16 so
that a block of 512 tokens is a page. So many at once are in flight. Engines are of a tiny random model, in this
process. With --ray they are replicas of --model on Ray Serve, and the router is the one of `serve --replicas`.

For each seed both routers get the same load in turn, under cache salts of their own, so that neither finds what the
other left. Told are prompt tokens from the cache as shares of all prompt tokens, beside the share that one endless
cache would give; and the replica that was sent the most prompt tokens over the mean.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from prolepsis.adapters.ray.autoscaling import Scaling
from prolepsis.adapters.ray.hosts import RayHosts
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Event, Finished, Tokens
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.start import start_engine
from prolepsis.lab.measure.provenance import provenance
from prolepsis.remote.engines import Engines
from prolepsis.remote.prefixes import PrefixRouter, ReplicaRouter, page_hashes
from tests.simulation.replicas import RoundRobin
from tests.simulation.shared_prefixes import SMALL_VOCABULARY, Conversations, User, mooncake
from tests.training.targets import config_of, save_target

CONTEXT = 8192
ROUTERS = ROUND_ROBIN, PREFIX = "round robin", "prefix"
"""A request's cache salt begins with the name of its router."""
Generate = Callable[[GenerateRequest], AsyncIterator[Event]]


@dataclass(slots=True)
class Served:
    """What came of one load under one router."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    """Prompt tokens, by replica."""
    first_token_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        return self.num_cached_tokens / self.num_prompt_tokens

    @property
    def imbalance(self) -> float:
        """Prompt tokens of the replica that was sent the most, over the mean."""
        return max(self.sent.values()) * len(self.sent) / self.sent.total()


class BothRouters:
    """A `ReplicaRouter` that chooses as ours does or takes turns, as each request's cache salt says."""

    def __init__(self) -> None:
        self._routers: Mapping[str, ReplicaRouter] = {ROUND_ROBIN: RoundRobin(), PREFIX: PrefixRouter()}
        self.tokens: Mapping[str, Counter[str]] = {name: Counter() for name in self._routers}
        """Prompt tokens sent to replicas, by router."""

    def ranked(self, request: GenerateRequest, loads: Mapping[str, int]) -> Sequence[str]:
        return self._routers[_router_of(request)].ranked(request, loads)

    def sent(self, request: GenerateRequest, replica: str) -> None:
        name = _router_of(request)
        self._routers[name].sent(request, replica)
        self.tokens[name][replica] += len(request.prompt_token_ids)


def _router_of(request: GenerateRequest) -> str:
    return request.cache_salt.split("/", maxsplit=1)[0]


class Replicas:
    """Engines in this process, and who of them is asked."""

    def __init__(self, engines: Mapping[str, EngineClient], router: BothRouters) -> None:
        self._engines = engines
        self._router = router
        self._loads = dict.fromkeys(engines, 0)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        name = self._router.ranked(request, self._loads)[0]
        self._router.sent(request, name)
        self._loads[name] += 1
        try:
            async for event in self._engines[name].generate(request):
                yield event
        finally:
            self._loads[name] -= 1


async def talk(generate: Generate, user: User, salt: str, served: Served) -> None:
    """Hold one conversation."""
    prompt = user.first
    for number, message in enumerate([*user.later, ()]):
        params = SamplingParams(temperature=0.0, max_tokens=user.num_output, ignore_eos=True)
        request = GenerateRequest(f"{salt}/{id(user)}/{number}", prompt, params, cache_salt=f"{salt}/{user.tenant}")
        answer: list[int] = []
        async for event in generate(request):
            if isinstance(event, Tokens):
                answer += event.token_ids
            elif isinstance(event, Finished):
                served.num_prompt_tokens += event.stats.num_prompt_tokens
                served.num_cached_tokens += event.stats.num_cached_tokens
                served.first_token_ms.append(1000 * (event.stats.first_token_s or 0.0))
            else:
                raise RuntimeError(f"a request did not finish: {event}")
        prompt = (*prompt, *answer, *message)


async def serve_load(generate: Generate, users: Sequence[User], salt: str, at_once: int) -> Served:
    """Let so many clients take the users in turn."""
    served, waiting, began = Served(), list(reversed(users)), time.monotonic()

    async def client() -> None:
        while waiting:
            await talk(generate, waiting.pop(), salt, served)

    await asyncio.gather(*(client() for _ in range(at_once)))
    served.seconds = time.monotonic() - began
    return served


def possible(users: Sequence[User]) -> float:
    """Return the share of prompt tokens that one endless cache would have, users one after the other."""
    pages: set[bytes] = set()
    num_tokens = num_cached = 0
    for user in users:
        prompt = user.first
        for number, message in enumerate([*user.later, ()]):
            request = GenerateRequest("", prompt, SamplingParams(), cache_salt=user.tenant)
            hashes = page_hashes(request)
            num_tokens += len(prompt)
            num_cached += PAGE_SIZE * next((i for i, key in enumerate(hashes) if key not in pages), len(hashes))
            prompt = (*prompt, *(SMALL_VOCABULARY + number for _ in range(user.num_output)))
            answered = GenerateRequest("", prompt, SamplingParams(), cache_salt=user.tenant)
            pages.update(page_hashes(answered))
            prompt = (*prompt, *message)
    return num_cached / num_tokens


def loads(arguments: argparse.Namespace) -> Iterator[list[User]]:
    """Yield the users of each seed; the trace is one load."""
    if arguments.trace:
        calls = mooncake(arguments.trace, speed=1.0, num_calls=arguments.calls)
        yield [User("trace", call.request.prompt_token_ids, (), call.num_output) for call in calls]
        return
    kind = Conversations(arguments.tenants, arguments.users, arguments.turns, arguments.system, answer=arguments.answer)
    for seed in range(arguments.seeds):
        yield kind.users(seed)


@contextmanager
def engines_here(arguments: argparse.Namespace) -> Iterator[tuple[Generate, Mapping[str, Counter[str]]]]:
    """Start tiny engines; yield how to ask them, and what was sent to each."""
    with tempfile.TemporaryDirectory() as folder:
        target = save_target(Path(folder), native=True)
        settings = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": CONTEXT}))
        changes = {"forward": "native", "proposers": (), "kv_memory": arguments.kv_memory, "max_step_tokens": 512}
        config = config_of(target).model_copy(update=changes)
        engines = {f"replica-{i}": start_engine(config).client for i in range(arguments.replicas)}
        router = BothRouters()
        yield Replicas(engines, router).generate, router.tokens


@contextmanager
def engines_on_ray(arguments: argparse.Namespace) -> Iterator[tuple[Generate, Mapping[str, Counter[str]]]]:
    """Start engines of the model on Ray Serve; yield how to ask them, and what was sent to each."""
    from prolepsis.adapters.ray.cluster import Cluster, prepare

    prepare(cluster := Cluster())  # before Ray is imported
    from prolepsis.adapters.ray.serve import engine_deployment, sharing_machine, started, stop_on

    config = EngineConfig(model=arguments.model, kv_memory=arguments.kv_memory)
    shared, scaling = (
        sharing_machine(config, arguments.replicas),
        Scaling(least=arguments.replicas, most=arguments.replicas),
    )
    handle = started(engine_deployment(shared, scaling), cluster)
    info = handle.handle.info.remote().result()
    try:
        router = BothRouters()
        yield Engines((), directory=RayHosts(handle), info=info, router=router).generate, router.tokens
    finally:
        stop_on(cluster)


async def measure(
    generate: Generate, sent: Mapping[str, Counter[str]], arguments: argparse.Namespace
) -> list[dict[str, Served]]:
    """Serve each load by both routers, which take turns in who is first."""
    rounds: list[dict[str, Served]] = []
    for number, users in enumerate(loads(arguments)):
        found: dict[str, Served] = {}
        for router in ROUTERS if number % 2 else ROUTERS[::-1]:
            before = Counter(sent[router])
            found[router] = await serve_load(generate, users, f"{router}/{number}", arguments.at_once)
            found[router].sent = Counter({name: sent[router][name] - before[name] for name in sent[router]})
        rounds.append(found)
        print(f"load {number + 1}: {_told(found)}; possible {possible(users):.1%}", file=sys.stderr)
    return rounds


def _told(found: Mapping[str, Served]) -> str:
    ratio = found[PREFIX].hit_rate / found[ROUND_ROBIN].hit_rate
    parts = [
        f"{router} {one.hit_rate:.1%} cached, imbalance {one.imbalance:.2f},"
        f" first token {statistics.median(one.first_token_ms):.0f} ms"
        for router, one in sorted(found.items())
    ]
    return f"{'; '.join(parts)}: {ratio:.2f}x"


def _bounds(text: str) -> tuple[int, int]:
    low, high = text.split(",")
    return int(low), int(high)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kv-memory", default="64MiB")
    parser.add_argument("--tenants", type=int, default=8)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--turns", type=_bounds, default=(2, 8))
    parser.add_argument("--system", type=_bounds, default=(64, 256))
    parser.add_argument("--answer", type=int, default=32)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--calls", type=int, default=1500)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with (engines_on_ray if arguments.ray else engines_here)(arguments) as (generate, sent):
        rounds = asyncio.run(measure(generate, sent, arguments))
    ratios = sorted(one[PREFIX].hit_rate / one[ROUND_ROBIN].hit_rate for one in rounds)
    print(f"cached prompt tokens, prefix over round robin: {statistics.median(ratios):.2f}x", end=" ")
    print(f"({ratios[0]:.2f}-{ratios[-1]:.2f}), {len(ratios)} loads")
    if arguments.json:
        figures = [{router: asdict(one) for router, one in found.items()} for found in rounds]
        arguments.json.write_text(json.dumps({"provenance": provenance({}, {}), "loads": figures}, indent=1))


if __name__ == "__main__":
    main()
