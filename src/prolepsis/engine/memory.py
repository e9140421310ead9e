"""Adds up what an engine takes of memory before its caches are allocated, and decides how many KV pages it has."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.drafting.proposers.early_exit import SCRATCH_PAGES
from prolepsis.engine.drafting.proposers.head import MAX_NODES, head_pages
from prolepsis.engine.drafting.proposers.head_slots import MAX_DEFERRED_BYTES
from prolepsis.engine.drafting.proposers.scratch import scratch_pages
from prolepsis.engine.kv.machine import CPU, host_memory, memory_of
from prolepsis.engine.kv.memory import MemoryUse, PagePlan, PageShape, Room, format_bytes, parse_bytes, plan_pages
from prolepsis.engine.models.heads.base import HeadInfo
from prolepsis.engine.models.protocol import ModelInfo

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    target: ModelInfo
    draft: ModelInfo | None = None
    head: HeadInfo | None = None
    exit_sequences: int = 0  # sequences that an early exit drafts for in one step
    lends: bool = False  # the cache of draft model or head lies in the target's, to be lent to sequences

    @property
    def lender(self) -> ModelInfo | HeadInfo | None:
        """The draft model, or without one the head: one of them has enough, and a head costs less to ask."""
        return (self.draft or self.head) if self.lends else None

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all caches that have one for each page of the pool."""
        lent = 0
        if self.head and self.draft and self.lends:  # the head has pages for those that the draft model lends, too
            lent = -(-self.head.page_bytes * self.draft.page_bytes // self.target.page_bytes)
        return lent + sum(each.page_bytes for each in (self.target, self.draft, self.head) if each)

    def lender_pages(self, num_pages: int, max_requests: int) -> int:
        """Return the pages of the lender's cache."""
        return num_pages if self.draft else head_pages(num_pages, max_requests)


def plan_memory(config: EngineConfig, loaded: Loaded, reserved: Sequence[MemoryUse] = ()) -> PagePlan:
    """Return KV pages and longest sequence; `reserved` is what others than the engine take of the machine's memory.

    Raises `MemoryPlanError` with the sum and what to lower, if the machine, its cgroup or its device has less, and
    `ConfigError` for a stated length that the model cannot hold.
    """
    limit = loaded.target.max_positions
    length = context_length(config, limit)
    shape = PageShape(loaded.page_bytes, PAGE_SIZE, length, config.max_requests, config.max_model_len is None)
    room = _room(config, loaded, reserved)
    plan = plan_pages(config.kv_memory, shape, room)
    warn_of_cut(plan.max_model_len, limit if config.max_model_len is None else length, config.kv_memory, room)
    uses = {use.what: format_bytes(use.num_bytes) for use in room.uses if use.num_bytes}
    size = format_bytes(plan.num_pages * shape.page_bytes)
    if (lender := loaded.lender) is not None:
        num_bytes = loaded.lender_pages(plan.num_pages, config.max_requests) * lender.page_bytes
        plan = replace(plan, num_lendable=-(-num_bytes // loaded.target.page_bytes))
        uses["lendable"] = format_bytes(num_bytes)
    log.info("memory_planned", kv_cache=size, max_model_len=plan.max_model_len, **uses, free=format_bytes(room.left))
    return plan


def context_length(config: EngineConfig, limit: int) -> int:
    """Return the longest sequence asked for; raises `ConfigError` for one that the model cannot hold."""
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}; allowed for this model: at most {limit}", param="max_model_len"
        )
    return config.max_model_len or limit


def warn_of_cut(planned: int, limit: int, kv_memory: str, room: Room) -> None:
    """Log the one line that says that a context is shorter than the model's."""
    if planned < limit:
        free = format_bytes(max(0, room.left), up=False)
        log.warning(
            "context_cut", max_model_len=planned, model_limit=limit, reason=f"kv_memory {kv_memory}, {free} free"
        )


def check_head(head: HeadInfo, device: str, num_pages: int, max_requests: int) -> None:
    """Raise `MemoryPlanError` if the K/V of a head that is loaded while serving does not fit next to the others."""
    memory = memory_of(device)
    num_bytes = num_pages * head.page_bytes + _head_scratch(head, max_requests)
    Room(memory.place, memory.free).check(MemoryUse(f"K/V of draft head {head.name}", num_bytes, "kv_memory"))


def _room(config: EngineConfig, loaded: Loaded, reserved: Sequence[MemoryUse]) -> Room:
    """Return the room of the KV cache; the host's is checked too where the model is on another device."""
    device, host = loaded.target.device, host_memory()
    target, draft, head = loaded.target, loaded.draft, loaded.head
    uses = [
        MemoryUse(f"weights of {Path(target.name).name}", target.weight_bytes),
        MemoryUse("workspace of a pass", config.max_step_tokens * target.token_bytes, "max_step_tokens"),
    ]
    if draft is not None:
        uses.append(MemoryUse(f"weights of draft model {Path(draft.name).name}", draft.weight_bytes))
    if head is not None:
        uses.append(MemoryUse(f"weights of draft head {head.name}", head.weight_bytes))
        scratch = _head_scratch(head, config.max_requests)
        uses.append(MemoryUse("workspace of the draft head", scratch + MAX_DEFERRED_BYTES, "max_requests"))
    exit_pages = SCRATCH_PAGES * loaded.exit_sequences
    uses.append(MemoryUse("workspace of the early exit", exit_pages * target.page_bytes, "max_requests"))
    indexes = {"suffix": ("suffix index", "suffix_memory"), "corpus": ("indexes of corpora", "corpus_memory")}
    named = [indexes[name] for name in config.proposers if name in indexes and config.num_speculative_tokens]
    grown = [MemoryUse(what, parse_bytes(getattr(config, setting), name=setting), setting) for what, setting in named]
    on_device, on_host = uses, [*grown, *reserved]
    if device != CPU:
        Room(host.place, host.free, on_host).check()
        memory = memory_of(device)
        return Room(memory.place, memory.free + memory.held, on_device)
    rest = host.held - sum(each.weight_bytes for each in (loaded.target, loaded.draft, loaded.head) if each)
    return Room(host.place, host.free + host.held, [*on_device, *on_host, MemoryUse("program", max(0, rest))])


def _head_scratch(head: HeadInfo, max_requests: int) -> int:
    return head.page_bytes * scratch_pages(MAX_NODES) * max_requests
