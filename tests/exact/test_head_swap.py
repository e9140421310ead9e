"""Draft heads exchanged while requests are served: no token changes, no request is lost, no slot of another is read."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.core.config import (
    CANDIDATE_HEAD,
    DRAFT_HEAD,
    HEAD_PROPOSERS,
    LEARNT_HEAD,
    EngineConfig,
    HeadProposerName,
)
from prolepsis.core.engine_client import HeadSwapped
from prolepsis.core.errors import EngineDead, InvalidParameter, MemoryPlanError, ModelLoadError
from prolepsis.core.events import Event, Finished
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SpeculationChoice
from prolepsis.core.stats import ProposerCounts
from prolepsis.engine.build import assemble
from prolepsis.engine.models.heads.base import DraftHead
from prolepsis.engine.models.heads.format import WEIGHTS
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.step import Engine
from prolepsis.engine.thread import ThreadEngineClient
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.random_heads import record_checksum, save_random_head
from tests.exact.oracle import CONFIG, PARAMS, PROMPT, Oracle, ask, at_any_price, plain, target
from tests.fakes import drain, outputs, submit, terminals

pytestmark = NEEDS_KERNELS

HEAD, CANDIDATE = DRAFT_HEAD, CANDIDATE_HEAD
OTHER_PROMPT = tuple(3 + (11 * i) % 150 for i in range(40))
ROOMY = CONFIG.model_copy(update={"kv_memory": "2MiB", "max_requests": 8})
DEEP = SpecPlan(fixed_depth=6)


def oracle(name: str, aux_layers: tuple[int, ...] = (0, 1, 2)) -> Oracle:
    texts = [(*prompt, *plain(kind, prompt=prompt)[0]) for kind in PARAMS for prompt in (PROMPT, OTHER_PROMPT)]
    return Oracle(texts, name, aux_layers)


def engine_with(heads: Mapping[str, DraftHead], first: DraftHead | None = None, config: EngineConfig = ROOMY) -> Engine:
    """Return an engine that finds `heads` by name, and none under "none"; others cannot be loaded."""

    def find(name: str) -> DraftHead | None:
        if name == "none":
            return None
        if name not in heads:
            raise ModelLoadError(f"{name} is damaged")
        return heads[name]

    engine = at_any_price(assemble(config, target(), head=first, find_head=find))
    engine.send(ApplyPlan(DEEP))
    return engine


def swap(engine: Engine, name: str, proposer: HeadProposerName = HEAD) -> HeadSwapped:
    """Put another head in, as between any two steps."""
    message, done = engine.load_head(name, proposer)
    engine.send(message)
    engine.wait()
    return done.result(timeout=1)


def steps(engine: Engine, count: int) -> list[Event]:
    return [event for _ in range(count) for event in engine.step()]


def counts(engine: Engine) -> ProposerCounts:
    return engine.speculation.proposers.counts[HEAD]


def check(engine: Engine, events: list[Event], names: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """All requests finished, with the tokens of plain decoding; `names`: request -> (parameters, prompt).

    No head was shown or read what it should not: an `Oracle` raises then, which the engine contains and counts.
    """
    assert not any(engine.speculation.proposers.failures.values())
    assert engine.hidden_states.num_failures == 0
    assert {name for name, end in terminals(events).items() if isinstance(end, Finished)} == set(names)
    texts = outputs(events)
    for request_id, (kind, prompt) in names.items():
        assert texts[request_id, 0] == plain(kind, prompt=prompt)[0], request_id


@pytest.mark.parametrize("aux_layers", [(0, 1, 2), (1,), (2, 0)])
def test_a_swap_in_mid_request_changes_no_token_and_the_new_head_drafts_for_new_requests(
    aux_layers: tuple[int, ...],
) -> None:
    old, new = oracle("old"), oracle("new", aux_layers)
    engine = engine_with({"new": new}, old)
    assert engine.info.draft_head == "old"
    submit(engine, *(ask(kind) for kind in PARAMS))
    events = steps(engine, 12)
    assert counts(engine).num_accepted > 0
    assert swap(engine, "new").previous == "old"
    assert (engine.info.draft_head, engine.info.proposers) == ("new", (HEAD,))
    before, seen = counts(engine).num_drafts, old.num_checked
    events += steps(engine, 40)
    assert counts(engine).num_drafts > before, "requests in flight have drafts of it from their next page on"
    late = {f"late-{kind}": (kind, PROMPT) for kind in PARAMS}
    submit(engine, *(ask(kind, name) for name, (kind, _) in late.items()))
    events += drain(engine)
    check(engine, events, {**{kind: (kind, PROMPT) for kind in PARAMS}, **late})
    assert old.num_checked == seen, "the old head sees nothing any more"
    assert new.num_checked > len(PROMPT)
    assert counts(engine).num_accepted > before // 2
    for name in late:
        assert terminals(events)[name].stats.num_accepted > 5, "the new head drafts for new requests"
        assert terminals(events)[name].stats.heads == {HEAD: "new"}
    for kind in PARAMS:
        assert terminals(events)[kind].stats.heads == {HEAD: None}, "its drafts are those of two heads"


def test_drafts_start_again_after_a_swap_and_are_never_wrong() -> None:
    engine = engine_with({"new": oracle("new")}, oracle("old"))
    submit(engine, ask("greedy"))
    events = steps(engine, 6)
    swap(engine, "new")
    events += drain(engine)  # its later pages are offered again, behind pages that are not
    submit(engine, ask("sampled", "finds-nothing"))
    events += drain(engine)
    submit(engine, ask("greedy", "finds-both"))
    events += drain(engine)
    check(
        engine,
        events,
        {"greedy": ("greedy", PROMPT), "finds-nothing": ("sampled", PROMPT), "finds-both": ("greedy", PROMPT)},
    )
    ends = terminals(events)
    assert ends["finds-nothing"].stats.num_cached_tokens == 0, "the prefix index was emptied"
    assert ends["finds-nothing"].stats.num_accepted > 5
    assert ends["finds-both"].stats.num_cached_tokens >= 64


def test_from_none_to_a_head_and_back() -> None:
    head = oracle("head")
    engine = engine_with({"head": head})
    assert (engine.info.draft_head, engine.info.proposers) == (None, ())
    submit(engine, ask("greedy"))
    events = steps(engine, 5)
    assert swap(engine, "head") == HeadSwapped(None, "head", 5)
    submit(engine, ask("sampled"))
    events += steps(engine, 20)
    assert counts(engine).num_accepted > 0
    drafted = counts(engine).num_drafts
    assert swap(engine, "none").current is None
    assert (engine.info.draft_head, engine.info.proposers) == (None, ())
    submit(engine, ask("truncated"))
    events += drain(engine)
    check(engine, events, {kind: (kind, PROMPT) for kind in ("greedy", "sampled", "truncated")})
    assert counts(engine).num_drafts == drafted, "counters stay where they were"
    swap(engine, "head")
    submit(engine, ask("ends"))
    check(engine, drain(engine), {"ends": ("ends", PROMPT)})
    assert counts(engine).num_drafts > drafted, "and continue"


def test_swaps_at_any_step_under_preemption_and_sharing_change_nothing() -> None:
    heads = {name: oracle(name, aux_layers) for name, aux_layers in {"a": (0, 1, 2), "b": (2,), "c": (0, 1)}.items()}
    small = CONFIG.model_copy(update={"kv_memory": "160KiB"})
    engine = engine_with(heads, heads["a"], small)
    names = {f"{kind}-{i}": (kind, prompt) for i, prompt in enumerate((PROMPT, OTHER_PROMPT)) for kind in PARAMS}
    submit(engine, *(ask(kind, name, prompt=prompt) for name, (kind, prompt) in names.items()))
    events: list[Event] = []
    for name in ("b", "c", "none", "a", "b", "none", "c"):
        events += steps(engine, 9)
        swap(engine, name)
        engine.scheduler.check()
    events += drain(engine)
    check(engine, events, names)


def test_estimates_of_the_old_head_are_dropped() -> None:
    engine = engine_with({"new": oracle("new")}, oracle("old"))
    submit(engine, ask("greedy"))
    drain(engine)
    acceptance = engine.speculation.proposers._board.acceptance
    assert acceptance.survival(HEAD, 1) != (0.6,)
    swap(engine, "new")
    assert acceptance.survival(HEAD, 1) == (0.6,), "the prior"


def test_further_heads_draft_beside_the_head_in_use_and_only_where_they_are_named() -> None:
    old, new = oracle("old"), oracle("new", (2, 0))
    engine = engine_with({"new": new, "newer": oracle("newer"), "learnt": oracle("learnt", (1,))}, old)
    submit(engine, *(ask(kind) for kind in PARAMS))
    events = steps(engine, 8)
    assert swap(engine, "new", CANDIDATE) == HeadSwapped(None, "new", 8)
    assert swap(engine, "learnt", LEARNT_HEAD) == HeadSwapped(None, "learnt", 8)
    assert engine.info.heads == {HEAD: "old", CANDIDATE: "new", LEARNT_HEAD: "learnt"}
    events += steps(engine, 20)
    drafted = engine.speculation.proposers.counts
    assert drafted[CANDIDATE].num_drafts == drafted[LEARNT_HEAD].num_drafts == 0, "nobody named them"
    named = {f"{head}-{kind}": (kind, PROMPT) for head in HEAD_PROPOSERS for kind in PARAMS}
    submit(
        engine,
        *(
            replace(ask(kind, name), speculation=SpeculationChoice(proposers=(name.partition("-")[0],)))
            for name, (kind, _) in named.items()
        ),
    )
    events += drain(engine)
    check(engine, events, {**{kind: (kind, PROMPT) for kind in PARAMS}, **named})
    ends = terminals(events)
    for name in named:
        assert set(ends[name].stats.proposers) == {name.partition("-")[0]}
        assert ends[name].stats.num_accepted > 5
    swap(engine, "newer")
    swap(engine, "none", CANDIDATE)
    swap(engine, "none", LEARNT_HEAD)
    assert engine.info.heads == {HEAD: "newer"}
    assert engine.info.proposers == (HEAD,)
    submit(engine, ask("greedy", "last"))
    check(engine, drain(engine), {"last": ("greedy", PROMPT)})


@pytest.fixture
async def client() -> AsyncIterator[ThreadEngineClient]:
    client = ThreadEngineClient(engine_with({"new": oracle("new")}, oracle("old")))
    yield client
    await client.close()


async def collect(
    client: ThreadEngineClient, kind: str, request_id: str, begun: asyncio.Event | None = None
) -> list[Event]:
    """Return all events of a request; `begun` is set by the first."""
    events = []
    async for event in client.generate(ask(kind, request_id)):
        events.append(event)
        if begun is not None:
            begun.set()
    return events


async def test_a_client_swaps_while_requests_stream(client: ThreadEngineClient) -> None:
    begun = asyncio.Event()
    first = [asyncio.create_task(collect(client, kind, kind, begun)) for kind in PARAMS]
    await begun.wait()
    swapped = await client.swap_head("new")
    assert (swapped.previous, swapped.current, client.info.draft_head) == ("old", "new", "new")
    events = [event for part in await asyncio.gather(*first) for event in part]
    events += await collect(client, "greedy", "late")
    check(client.engine, events, {**{kind: (kind, PROMPT) for kind in PARAMS}, "late": ("greedy", PROMPT)})


async def test_a_head_that_cannot_be_loaded_leaves_the_old_one_in_place(client: ThreadEngineClient) -> None:
    begun = asyncio.Event()
    serving = asyncio.create_task(collect(client, "greedy", "a", begun))
    await begun.wait()
    with pytest.raises(ModelLoadError, match="broken is damaged"):
        await client.swap_head("broken")
    assert client.info.draft_head == "old"
    check(
        client.engine,
        [*await serving, *await collect(client, "sampled", "b")],
        {"a": ("greedy", PROMPT), "b": ("sampled", PROMPT)},
    )
    assert counts(client.engine).num_accepted > 20


async def test_a_head_is_loaded_beside_the_engine_thread() -> None:
    threads: list[str] = []

    def find(name: str) -> DraftHead | None:
        threads.append(threading.current_thread().name)
        return oracle(name)

    client = ThreadEngineClient(assemble(ROOMY, target(), find_head=find))
    await asyncio.gather(client.swap_head("a"), client.swap_head("b"))
    assert client.info.draft_head in ("a", "b")
    assert all(name.startswith("compile") for name in threads)
    await client.close()
    with pytest.raises(EngineDead):
        await client.swap_head("c")


async def test_a_waiting_swap_fails_when_the_engine_dies(client: ThreadEngineClient) -> None:
    message, done = client.engine.load_head("new")
    client.engine.die("test")
    with pytest.raises(EngineDead):
        done.result(timeout=1)
    client.engine.send(message)
    with pytest.raises(EngineDead):
        await client.swap_head("new")


async def test_a_swap_ends_with_an_engine_whose_step_is_stuck(client: ThreadEngineClient) -> None:
    await collect(client, "greedy", "a")
    _, done = client.engine.load_head("new")
    watch = client.engine.watch
    watch.processor, watch.stuck_after_s = lambda: float, 1.0  # a thread that computes nothing
    watch.begin()
    watch.began = 0.0
    client.watchdog.check()
    with pytest.raises(EngineDead, match="a step has not ended"):
        done.result(timeout=1)
    with pytest.raises(EngineDead, match="a step has not ended"):
        await client.swap_head("new")


@pytest.mark.parametrize("proposer", HEAD_PROPOSERS)
def test_a_head_whose_cache_does_not_fit_the_memory_is_refused(proposer: HeadProposerName) -> None:
    engine = engine_with({"huge": Oracle([PROMPT], "huge", page_bytes=1 << 60)}, oracle("old"))
    with pytest.raises(MemoryPlanError, match="K/V of draft head huge"):
        engine.load_head("huge", proposer)
    assert engine.info.draft_head == "old"


def test_an_engine_that_drafts_nothing_takes_no_head() -> None:
    engine = assemble(ROOMY.model_copy(update={"num_speculative_tokens": 0}), target())
    with pytest.raises(InvalidParameter, match="num_speculative_tokens is 0"):
        engine.load_head("any")


async def test_heads_of_the_registry_are_swapped_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    model = target().model
    assert isinstance(model, NativeModel)
    for name in ("a@1", "a@2", "damaged", "other"):
        identity = "other" if name == "other" else target().identity
        folder = save_random_head(tmp_path / "heads" / name, model.shape, {"target_fingerprint": identity})
        record_checksum(folder)
    weights = tmp_path / "heads" / "damaged" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    client = ThreadEngineClient(
        at_any_price(assemble(ROOMY.model_copy(update={"model_dir": tmp_path / "models"}), target()))
    )
    client.send(ApplyPlan(DEEP))
    begun = asyncio.Event()
    serving = [asyncio.create_task(collect(client, kind, kind, begun)) for kind in PARAMS]
    await begun.wait()
    assert (await client.swap_head("a")).current == "a@2"
    with pytest.raises(ModelLoadError, match="is damaged: its SHA-256"):
        await client.swap_head("damaged")
    with pytest.raises(ModelLoadError, match="with fingerprint other, not tiny"):
        await client.swap_head("other")
    assert (await client.swap_head("a@1")).previous == "a@2"
    events = [event for part in await asyncio.gather(*serving) for event in part]
    events += await collect(client, "sampled", "late")
    check(client.engine, events, {**{kind: (kind, PROMPT) for kind in PARAMS}, "late": ("sampled", PROMPT)})
    assert client.info.draft_head == "a@1"
    assert counts(client.engine).num_drafts > 0
    await client.close()
