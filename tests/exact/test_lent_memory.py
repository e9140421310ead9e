"""The memory of draft caches is lent to sequences: fewer of these are preempted, and no token changes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from prolepsis.core.events import Event
from prolepsis.core.messages import Abort, ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SpeculationChoice
from prolepsis.engine.build import assemble
from prolepsis.engine.drafting.proposers.head import MAX_NODES, head_pages
from prolepsis.engine.drafting.proposers.scratch import scratch_pages
from prolepsis.engine.models.heads.base import DraftHead
from prolepsis.engine.models.heads.native import NativeHead
from prolepsis.engine.models.protocol import KVCache
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.paging import CALM_STEPS
from prolepsis.engine.runner import Runner
from prolepsis.engine.step import Engine
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.random_heads import random_head
from tests.exact.oracle import CONFIG, PARAMS, PROMPT, Oracle, ask, at_any_price, plain, target
from tests.fakes import TableCache, outputs, submit, terminals

pytestmark = NEEDS_KERNELS

OTHER_PROMPT = tuple(3 + (11 * i) % 150 for i in range(75))
ASKED = {f"{kind}-{i}": (kind, prompt) for i, prompt in enumerate((PROMPT, OTHER_PROMPT)) for kind in PARAMS}


class PlacedOracle(Oracle):
    """Fails where it reads what it did not write; its pages are where the target's may be."""

    pages: TableCache

    def make_cache_in(self, cache: KVCache, first_page: int, num_pages: int) -> KVCache:
        self.pages = TableCache(num_pages)
        return self.pages


def native_head() -> DraftHead:
    model = target().model
    assert isinstance(model, NativeModel)
    config, weights = random_head(model.shape)
    return NativeHead("random", config, replace(weights, lm_head=weights.lm_head * 40), model)


def engine_of(head: DraftHead | None, *, draft: bool = False, lends: bool = True, **changes: object) -> Engine:
    names = {"proposers": ("draft_model",), "draft_model": "tiny"} if draft else {}
    config = CONFIG.model_copy(update={**names, **changes})
    engine = at_any_price(assemble(config, target(), target() if draft else None, head=head))
    if not lends:
        engine.scheduler._paging._lender = None
    engine.send(ApplyPlan(SpecPlan(fixed_depth=6)))
    return engine


def served(engine: Engine, sources: Sequence[GenerateRequest], oracle: PlacedOracle | None = None) -> list[Event]:
    """Serve; what an oracle had in its pages is overwritten while they are lent."""
    submit(engine, *sources)
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
        engine.scheduler.check()
        if oracle is not None and engine.scheduler.pool.num_lent:
            oracle.pages.slots = [(-9, -9)] * len(oracle.pages.slots)
    assert not any(engine.speculation.proposers.failures.values())
    assert engine.hidden_states.num_failures == 0
    return events


def num_preemptions(events: Sequence[Event]) -> int:
    return sum(end.stats.num_preemptions for end in terminals(events).values())


def check(events: Sequence[Event]) -> None:
    texts = outputs(events)
    for name, (kind, prompt) in ASKED.items():
        assert texts[name, 0] == plain(kind, prompt=prompt)[0], name


@pytest.mark.parametrize(
    ("draft", "has_head", "changes"),
    [
        (False, True, {}),
        (False, True, {"prefix_cache": False, "early_exit_layer": 1}),
        (True, False, {}),
        (True, True, {"early_exit_layer": 1, "kv_memory": "320KiB"}),
    ],
)
def test_fewer_sequences_are_preempted_and_no_token_changes(
    draft: bool, has_head: bool, changes: dict[str, object]
) -> None:
    sources = [ask(kind, name, prompt=prompt) for name, (kind, prompt) in ASKED.items()]
    counts: dict[bool, int] = {}
    for lends in (False, True):
        engine = engine_of(native_head() if has_head else None, draft=draft, lends=lends, **changes)
        events = served(engine, sources)
        check(events)
        counts[lends] = num_preemptions(events)
        plain_steps = [end.stats.plain_steps.get("memory_lent", 0) for end in terminals(events).values()]
        assert (sum(plain_steps) > 0) == (lends and not changes.get("early_exit_layer"))
    assert counts[True] < counts[False], counts


def placed_oracle() -> PlacedOracle:
    return PlacedOracle([(*prompt, *plain(kind, prompt=prompt)[0]) for kind, prompt in ASKED.values()], page_bytes=8192)


@pytest.mark.parametrize(("draft", "has_head"), [(False, True), (True, False), (True, True), (False, False)])
def test_the_plan_names_what_is_lent_and_all_caches_stay_within_it(draft: bool, has_head: bool) -> None:
    with capture_logs() as logs:
        engine = engine_of(native_head() if has_head else None, draft=draft, kv_memory="1MiB")
    [planned] = [line for line in logs if line["event"] == "memory_planned"]
    assert ("lendable" in planned) == (draft or has_head)
    assert isinstance(engine.runner, Runner)
    num_bytes = engine.runner.cache.num_pages * target().model.info.page_bytes
    if has_head:
        num_bytes -= scratch_pages(MAX_NODES) * CONFIG.max_requests * native_head().info.page_bytes  # planned apart
    if draft and has_head:  # whose cache is elsewhere, as the draft model's is in the target's
        num_pages = head_pages(engine.runner.cache.num_pages, CONFIG.max_requests)
        num_bytes += num_pages * native_head().info.page_bytes
    assert (1 << 20) - 3 * (1 << 14) < num_bytes < (1 << 20) + (1 << 14)


def test_a_head_that_has_its_memory_back_reads_nothing_that_was_there_before() -> None:
    oracle = placed_oracle()
    engine = engine_of(oracle)
    check(served(engine, [ask(kind, name, prompt=prompt) for name, (kind, prompt) in ASKED.items()], oracle))
    drafted = engine.speculation.proposers.counts["draft_head"]
    before = drafted.num_accepted
    assert outputs(served(engine, [ask("greedy", "late")], oracle))["late", 0] == plain("greedy")[0]
    assert drafted.num_accepted > before + 5


def test_memory_goes_back_while_a_sequence_that_needed_it_goes_on() -> None:
    oracle = placed_oracle()
    engine = engine_of(oracle, prefix_cache=False)
    proposers, pool = engine.speculation.proposers, engine.scheduler.pool
    params = replace(PARAMS["greedy"], max_tokens=110)
    sources = [replace(ask("greedy", name), params=params) for name in ("long", "short", "shorter")]
    submit(engine, *(replace(source, speculation=SpeculationChoice("off")) for source in sources))
    events: list[Event] = []
    while not pool.num_lent:
        events += engine.step()
    assert proposers.memory()[0].lent == proposers.memory()[0].kv > 0
    for source in sources[1:]:
        engine.send(Abort(source.request_id))
    for _ in range(CALM_STEPS):
        assert pool.num_lent
        events += engine.step()
    assert not pool.num_lent
    assert proposers.memory()[0].lent == 0
    [sequence] = engine.scheduler.running
    assert not any(map(pool.is_lent, sequence.pages))
    assert outputs([*events, *served(engine, [])])["long", 0][:70] == plain("greedy")[0]
