"""A target whose logits are a known function of the context it finds in its paged cache, and an engine around it.

Tokens and positions are what the fake cache stores, so a wrong page, slot, position, copy or move changes the logits.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.events import Event, Terminal, Tokens
from prolepsis.core.figures import EngineObserver
from prolepsis.core.messages import Submit
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.plan import AppliedPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.chunks import ChunkLimit
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.call_watch import CallWatch
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.draft import ROOT, Draft, chain
from prolepsis.engine.drafting.proposer import HiddenStateConsumer, Proposer, SequenceView
from prolepsis.engine.drafting.window import DraftWindow
from prolepsis.engine.hidden_states import HiddenStateRouter
from prolepsis.engine.kv.pages import PagePool
from prolepsis.engine.models.protocol import Batch, KVCache, ModelInfo
from prolepsis.engine.paging import Paging
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed, Runner, StepVerifier
from prolepsis.engine.scheduler import Scheduler, SchedulerLimits
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine, EngineParts
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.stream import Detokenizer

VOCAB = 24
EOS = 0


def table_logits(context: Sequence[int]) -> list[float]:
    """Return the logits after `context`: pseudo-random, and different for any other context."""
    digest = blake2b(array("q", context).tobytes(), digest_size=2 * VOCAB).digest()
    return [value / 8192.0 for value in array("H", digest)]


class TableCache:
    """Stores a token id and a position where a model would store keys and values."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.slots = [(-1, -1)] * (num_pages * PAGE_SIZE)

    def copy_page(self, source: int, target: int) -> None:
        begin = source * PAGE_SIZE
        self.slots[target * PAGE_SIZE : (target + 1) * PAGE_SIZE] = self.slots[begin : begin + PAGE_SIZE]

    def clear_page(self, page: int) -> None:
        self.slots[page * PAGE_SIZE : (page + 1) * PAGE_SIZE] = [(-1, -1)] * PAGE_SIZE

    def move(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        for source, target in moves:
            self.slots[slot_of(pages, target)] = self.slots[slot_of(pages, source)]

    def read(self, pages: Sequence[int], count: int) -> list[tuple[int, int]]:
        """Return the first slots of a sequence."""
        read = pages[: -(-count // PAGE_SIZE)]
        return [slot for page in read for slot in self.slots[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]][:count]

    def views(self, page: int) -> Sequence[Tensor]:
        return [torch.tensor(self.slots[page * PAGE_SIZE : (page + 1) * PAGE_SIZE])]


def slot_of(pages: Sequence[int], index: int) -> int:
    return pages[index // PAGE_SIZE] * PAGE_SIZE + index % PAGE_SIZE


class TableModel:
    """A `TargetModel` with `table_logits` of the context that each kept row reaches through pages and parents."""

    def __init__(self, eos_token_ids: tuple[int, ...] = (EOS,)) -> None:
        self.info = ModelInfo(
            "table", "table", VOCAB, 1 << 20, 1, PAGE_SIZE, 0, eos_token_ids, invariant_by="a function of the context"
        )
        self.num_passes = 0
        self.fail_next = 0

    def make_cache(self, num_pages: int) -> TableCache:
        return TableCache(num_pages)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, VOCAB] float32
        assert isinstance(cache, TableCache)
        self.num_passes += 1
        if self.fail_next:
            self.fail_next -= 1
            raise RuntimeError("the device is gone")
        logits: list[list[float]] = []
        kept = set(batch.logit_rows.tolist())
        starts, pages, cached = batch.starts.tolist(), batch.pages.tolist(), batch.cached.tolist()
        tokens, positions, parents = batch.token_ids.tolist(), batch.positions.tolist(), batch.parents.tolist()
        for s, (begin, end) in enumerate(pairwise(starts)):
            slots = [slot_of(pages[s], cached[s] + i) for i in range(end - begin)]
            for i, slot in enumerate(slots):
                cache.slots[slot] = (tokens[begin + i], positions[begin + i])
            before = cache.read(pages[s], cached[s])
            for i in range(end - begin):
                if begin + i in kept:
                    path = _path(parents[begin:end], i)
                    logits.append(_read(before + [cache.slots[slots[j]] for j in path]))
        return torch.tensor(logits, dtype=torch.float32).reshape(-1, VOCAB)


def _path(parents: Sequence[int], node: int) -> list[int]:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def _read(context: Sequence[tuple[int, int]]) -> list[float]:
    tokens, positions = zip(*context, strict=True)
    return table_logits(tokens if positions == tuple(range(len(context))) else (*tokens, -7))


def pick(logits: Sequence[float], params: SamplingParams, key: int, position: int) -> int:
    """Return the keyed sample of one row at output `position`; temperature only."""
    if params.greedy:
        return max(range(VOCAB), key=lambda t: (logits[t], -t))
    return max(range(VOCAB), key=lambda t: logits[t] / params.temperature + _gumbel(key, position, t))


def _gumbel(key: int, position: int, token: int) -> float:
    bits = blake2b(array("Q", [key, position, token]).tobytes(), digest_size=6).digest()
    return -math.log(-math.log((int.from_bytes(bits) + 0.5) / 2.0**48))


class KeyedVerifier:
    """Walks chains and trees by `pick`: what the real verifier does, for parameters as plain as can be."""

    def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        table, first = computed.logits.tolist(), 0
        results: list[SampledTokens | None] = []
        for row in rows:
            size = 1 + len(row.draft.tokens) if row.draft else 1
            if row.samples_next:
                results.append(_walk(row, table[first : first + size]))
                first += size
            else:
                results.append(None)
        assert first == len(table), "every kept row of logits is used"
        return results


def _walk(row: Row, logits: Sequence[Sequence[float]]) -> SampledTokens:
    sequence, draft, node = row.sequence, row.draft, ROOT
    tokens: list[int] = []
    path: list[int] = []
    while True:
        token = pick(logits[node + 1], sequence.params, sequence.noise_key, sequence.num_output_tokens + len(tokens))
        tokens.append(token)
        children = [i for i, p in enumerate(draft.parents) if p == node] if draft else []
        node = next((i for i in children if draft and draft.tokens[i] == token), -2)
        if node < 0 or token in sequence.end_ids:
            return SampledTokens(tuple(tokens), tuple(path))
        path.append(node)


class Letters:
    """Token i is the i-th letter."""

    fingerprint = "letters"

    @property
    def vocab(self) -> dict[str, int]:
        return {chr(ord("a") + token): token for token in range(VOCAB)}

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)

    def to_json(self) -> str:
        raise AssertionError("nobody compiles a grammar for letters")


@dataclass(slots=True)
class EngineSetup:
    """How the engine under test is set up; small budgets make everything happen soon."""

    num_pages: int = 64
    num_lendable: int = 0
    lender: str = ""  # the proposer that lends these pages
    max_sequences: int = 8
    max_step_tokens: int = 64
    max_model_len: int = 256
    prefix_cache: bool = True
    proposers: Sequence[Proposer] = ()
    verifier: StepVerifier = field(default_factory=KeyedVerifier)
    observer: EngineObserver | None = None
    model: TableModel = field(default_factory=TableModel)
    clock: Callable[[], float] | None = None
    grammars: Grammars | None = None
    detokenizer: Detokenizer = field(default_factory=Letters)
    consumers: Sequence[HiddenStateConsumer] = ()
    watch: CallWatch | None = None
    stuck_after_s: float | None = None
    chunks: ChunkLimit | None = None


E = TypeVar("E", bound=Engine)


def build(setup: EngineSetup) -> Engine:
    """Return an engine over the table model."""
    return build_as(Engine, setup)


def build_as(kind: type[E], setup: EngineSetup) -> E:
    """Return an engine of a subclass."""
    model = setup.model
    cache = model.make_cache(setup.num_pages + setup.num_lendable)
    pool = PagePool(setup.num_pages, PAGE_SIZE, prefix_cache=setup.prefix_cache, num_lendable=setup.num_lendable)
    limits = SchedulerLimits(
        setup.max_sequences, setup.max_step_tokens, setup.max_model_len, VOCAB, model.info.eos_token_ids
    )
    window = DraftWindow(flat_cost())
    proposers = ProposerSet(setup.proposers, window, AcceptanceEstimator(), VOCAB, watch=setup.watch)
    lender = next((known for known in proposers.contained if known.name == setup.lender), None)
    paging = Paging(pool, cache.copy_page, cache.clear_page, lender=lender)
    named = partial(EngineInfo, weights="table", tokenizer=Letters.fingerprint)
    info = named("table", "table", VOCAB, setup.max_model_len, "fp", "strict", "table", proposers.names)
    plan = AppliedPlan()
    parts = EngineParts(
        info=info,
        plan=plan,
        scheduler=Scheduler(limits, paging, plan, setup.detokenizer, setup.grammars, chunks=setup.chunks),
        speculation=Speculation(proposers, max_step_tokens=setup.max_step_tokens, max_model_len=setup.max_model_len),
        runner=Runner(model, cache),
        verifier=setup.verifier,
        observer=setup.observer,
        hidden_states=HiddenStateRouter(setup.consumers),
        stuck_after_s=setup.stuck_after_s,
    )
    return kind(parts, setup.clock) if setup.clock else kind(parts)


def request(
    request_id: str, prompt: Sequence[int], params: SamplingParams | None = None, *, n: int = 1, priority: int = 0
) -> GenerateRequest:
    """Return a request; by default greedy, 20 tokens."""
    return GenerateRequest(
        request_id, tuple(prompt), params or SamplingParams(temperature=0.0, max_tokens=20), n=n, priority=priority
    )


def submit(engine: Engine, *requests: GenerateRequest) -> None:
    for source in requests:
        engine.send(Submit(source, engine.clock()))


def drain(engine: Engine, *, check: bool = True, max_steps: int = 2000, may_contain: bool = False) -> list[Event]:
    """Step until nothing is left; prove the accounting after every step, and at the end that no fault was contained."""
    events: list[Event] = []
    for _ in range(max_steps):
        if not engine.has_work:
            faults = engine.contained.num_faults
            assert may_contain or not any(faults.values()), f"faults were contained, and are in the log: {faults}"
            return events
        events += engine.step()
        if check:
            engine.scheduler.check()
    raise AssertionError(f"still busy after {max_steps} steps")


def run(engine: Engine, *requests: GenerateRequest, may_contain: bool = False) -> list[Event]:
    submit(engine, *requests)
    return drain(engine, may_contain=may_contain)


def outputs(events: Iterable[Event]) -> dict[tuple[str, int], list[int]]:
    """Return the tokens of each (request, sequence)."""
    texts: dict[tuple[str, int], list[int]] = {}
    ends: dict[tuple[str, int], int] = {}
    for event in events:
        if isinstance(event, Tokens):
            sample = event.request_id, event.index
            assert event.position == ends.get(sample, event.position), "the events follow one another"
            ends[sample] = event.position + len(event.token_ids)
            texts.setdefault(sample, []).extend(event.token_ids)
    return texts


def terminals(events: Iterable[Event]) -> dict[str, Terminal]:
    """Return each request's terminal event; there is exactly one, and nothing after it."""
    found: dict[str, Terminal] = {}
    for event in events:
        assert event.request_id not in found, f"{event} after {found.get(event.request_id)}"
        if isinstance(event, Terminal):
            found[event.request_id] = event
    return found


def reference(source: GenerateRequest, key: int, *, max_model_len: int = 256) -> list[int]:
    """Decode one sequence with nothing but the table: no pages, no batch, no drafts."""
    context, params = list(source.prompt_token_ids), source.params
    output: list[int] = []
    while len(output) < params.max_tokens and len(context) < max_model_len:
        output.append(pick(table_logits(context), params, key, len(output)))
        context.append(output[-1])
        ends = (output[-1] == EOS and not params.ignore_eos) or output[-1] in params.stop_token_ids
        if ends and len(output) >= params.min_tokens:
            break
        if any(stop in Letters().decode(output) for stop in params.stop):
            break
    return output


def true_continuation(sequence: SequenceView, length: int) -> list[int]:
    """Return what the target will say next, as `pick` sees it."""
    context, tokens = list(sequence.tokens), []
    for _ in range(length):
        position = len(context) - sequence.num_prompt_tokens
        tokens.append(pick(table_logits(context), sequence.params, sequence.noise_key, position))
        context.append(tokens[-1])
    return tokens


def draft_chain(sequence: SequenceView, limit: int, *, wrong_from: int) -> Draft:
    """Return the right chain, wrong from node `wrong_from` on."""
    right = true_continuation(sequence, limit)
    return chain(tuple(t if i < wrong_from else (t + 1) % VOCAB for i, t in enumerate(right)), "scripted")


def draft_tree(sequence: SequenceView, limit: int) -> Draft | None:
    """Return a tree whose principal chain is wrong in its second node and whose right path takes the side branches."""
    right = true_continuation(sequence, 3)
    wrong = [(t + 1) % VOCAB for t in right]
    tokens = (right[0], wrong[1], wrong[2], right[1], wrong[2], right[2])
    parents = (ROOT, 0, 1, 0, 3, 3)
    return Draft(tokens, parents, "scripted") if limit >= len(tokens) else None
