"""Builds an engine from a configuration: the one place that puts its parts together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from prolepsis.core.config import (
    DRAFT_HEAD,
    HEAD_PROPOSERS,
    NAMED_HEADS,
    PROPOSER_NAMES,
    SYNTHETIC,
    UPSTREAM,
    EngineConfig,
    HeadProposerName,
)
from prolepsis.core.engine_client import EngineInfo, InstalledHead
from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.core.figures import EngineObserver
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.phases import phase
from prolepsis.core.plan import AppliedPlan, SpecPlan
from prolepsis.engine.chunks import ChunkLimit
from prolepsis.engine.draft_head_slot import DraftHeadSlot
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.call_watch import CallWatch
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.cost import CostCurve, flat_cost
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.proposer import HiddenStateConsumer, Proposer
from prolepsis.engine.drafting.proposers.copies import TextCodec
from prolepsis.engine.drafting.proposers.corpus import CorpusProposer
from prolepsis.engine.drafting.proposers.draft_model import DraftModelProposer
from prolepsis.engine.drafting.proposers.early_exit import SCRATCH_PAGES, EarlyExitProposer
from prolepsis.engine.drafting.proposers.expected_text import ClientProposer, PredictionProposer
from prolepsis.engine.drafting.proposers.grammar import GrammarProposer
from prolepsis.engine.drafting.proposers.head import HeadProposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.proposers.synthetic import SyntheticProposer
from prolepsis.engine.drafting.proposers.vocabulary import vocabulary_digest
from prolepsis.engine.drafting.remote.link import Link, RemoteAddress
from prolepsis.engine.drafting.remote.proposer import RemoteProposer, RemoteSettings
from prolepsis.engine.drafting.remote.queue import Queue
from prolepsis.engine.drafting.window import DraftWindow, paying_loads
from prolepsis.engine.exactness import Exactness, decide, passed_file
from prolepsis.engine.hidden_states import HiddenStateRouter
from prolepsis.engine.kept_prefixes import FOLDER, KeptPrefixes
from prolepsis.engine.kv.memory import MemoryUse, PagePlan, parse_bytes
from prolepsis.engine.kv.pages import PagePool
from prolepsis.engine.memory import Loaded, check_head, plan_memory
from prolepsis.engine.models.draft_models import warn_of_other_target
from prolepsis.engine.models.heads.aliases import HeadAliases
from prolepsis.engine.models.heads.base import DraftHead
from prolepsis.engine.models.heads.registry import chosen_head, head_for, list_heads, misfit_of, seen_by_auto
from prolepsis.engine.models.load import LoadedModel, build_of, load_model, machine_of
from prolepsis.engine.models.protocol import ArgmaxModel, KVCache, PlacedModel, ThreadedModel
from prolepsis.engine.models.targets.early_exit import make_exit
from prolepsis.engine.native.processor import default_threads, machine_file
from prolepsis.engine.paging import Lender, Paging
from prolepsis.engine.profile import cost_curve, curve_file
from prolepsis.engine.runner import Runner, require_features
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.scheduler import Scheduler, SchedulerLimits
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine, EngineParts
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.verification import Verification
from prolepsis.engine.watchdog import processor_clock

log = structlog.get_logger(__name__)

FREE_PROPOSERS: dict[str, Callable[[EngineConfig, TextCodec | None], Proposer]] = {
    "grammar": lambda *_: GrammarProposer(),
    "suffix": lambda config, codec: SuffixProposer(parse_bytes(config.suffix_memory, name="suffix_memory"), codec),
    "corpus": lambda config, _: CorpusProposer(parse_bytes(config.corpus_memory, name="corpus_memory")),
    "prompt_lookup": lambda *_: PromptLookupProposer(),
    "prediction": lambda *_: PredictionProposer(),
    "client": lambda *_: ClientProposer(),
    SYNTHETIC: lambda config, _: SyntheticProposer(config.synthetic),
}
"""Proposers that need nothing but the configuration and the target's tokenizer, if it is known."""

DRAFT_MODEL = "draft_model"
REMOTE = RemoteProposer.name
EARLY_EXIT = EarlyExitProposer.name
EXIT_SEQUENCES = 16
"""Sequences that an early exit drafts for in one step: its scratch pages are whole pages of the target."""


def build_engine(
    config: EngineConfig,
    observer: EngineObserver | None = None,
    *,
    target: LoadedModel | None = None,
    reserved: Sequence[MemoryUse] = (),
) -> Engine:
    """Load the model that `config` names, unless it is given as `target`, and return an engine around it.

    Raises `ConfigError`, `ModelError` and `MemoryPlanError`, each saying what was given and what is allowed.
    """
    names = proposer_names(config)
    target = target or load_model(config)
    draft = load_model(config, config.draft_model) if DRAFT_MODEL in names else None
    if draft is not None and config.draft_model is not None:
        warn_of_other_target(config.draft_model, target, config.model_dir)
    head, reason = None, "the settings let no head draft"
    if names and not config.synthetic:
        with phase("reading the draft head"):
            head, reason = chosen_head(config.draft_head, target, config.model_dir)
    log.info("draft_head", head=head.info.name if head else None, reason=reason)
    if head is None and DRAFT_HEAD in names:
        raise ConfigError(f"proposers names {DRAFT_HEAD!r}, but there is none: {reason}", param="draft_head")
    engine = assemble(config, target, draft, observer, head=head, reserved=reserved)
    engine.info = replace(engine.info, draft_head_reason=reason)
    return engine


def assemble(
    config: EngineConfig,
    target: LoadedModel,
    draft: LoadedModel | None = None,
    observer: EngineObserver | None = None,
    *,
    head: DraftHead | None = None,
    consumers: Sequence[HiddenStateConsumer] = (),
    find_head: Callable[[str], DraftHead | None] | None = None,
    reserved: Sequence[MemoryUse] = (),
) -> Engine:
    """Return an engine around loaded models; `consumers` take the target's hidden states, as the head does.

    `find_head` loads by name the heads that replace this one later; default: those of the registry. `reserved` is what
    the process takes of memory besides the engine. Raises `MemoryPlanError` if the machine has too little.
    """
    model, info = target.model, target.model.info
    threads = config.threads or default_threads()
    on_machine = (target.fingerprint, threads, build_of(model))
    exactness = decide(model, config.strict, passed_file(*on_machine))
    early, exit_sequences = None, 0
    if EARLY_EXIT in proposer_names(config) and config.early_exit_layer is not None:
        early, exit_sequences = make_exit(model, config.early_exit_layer), min(config.max_requests, EXIT_SEQUENCES)
    drafting = draft.model if draft else head
    lender = drafting if isinstance(model, PlacedModel) and isinstance(drafting, PlacedModel) else None
    draft_info, head_info = draft.model.info if draft else None, head.info if head else None
    loaded = Loaded(info, draft_info, head_info, exit_sequences, lends=lender is not None)
    with phase("planning memory"):
        plan = plan_memory(config, loaded, reserved)
        num_pages, max_model_len = plan.num_pages, plan.max_model_len
        all_pages = num_pages + plan.num_lendable
        cache = model.make_cache(all_pages + SCRATCH_PAGES * exit_sequences)
        lent = None
        if lender is not None:
            lent = lender.make_cache_in(cache, num_pages, loaded.lender_pages(num_pages, config.max_requests))
    slots = _draft_head_slots(config, target, head, find_head, plan, lent=None if draft else lent)
    slot = slots[DRAFT_HEAD]
    proposers = _proposers(config, target, draft, observer, num_pages, lent=lent)
    if early:
        scratch = {"first_page": all_pages, "max_sequences": exit_sequences, "page_bytes": info.page_bytes}
        proposers.append(EarlyExitProposer(early, cache, **scratch))
    if slot.head is not None:
        proposers.append(slot.head)
    cost = cost_curve(model, curve_file(*on_machine)) if proposers else flat_cost()
    speculation = _speculation(config, info.vocab_size, proposers, cost, max_model_len)
    hidden_states = HiddenStateRouter(
        [*([slot.head] if slot.head else []), *consumers], always_capture=not isinstance(model, ArgmaxModel)
    )
    if hidden_states.aux_layers:
        require_features(model)
    spec_plan = AppliedPlan(SpecPlan(num_speculative_tokens=config.num_speculative_tokens))
    name = DRAFT_MODEL if draft else DRAFT_HEAD
    lends = next((known for known in speculation.proposers.contained if lent and known.name == name), None)
    paging = _paging(
        config, machine_file(FOLDER, *on_machine).with_suffix(""), plan, cache, slots.values(), lender=lends
    )
    log.info("engine_built", model=info.name, forward=info.forward, pages=num_pages, exactness=exactness.mode)
    team = model.team if isinstance(model, ThreadedModel) else None
    sampler = Sampler(info.vocab_size, info.eos_token_ids, team=team)
    parts = EngineParts(
        info=_described(target, max_model_len, exactness, speculation.proposers, slot),
        scheduler=_scheduler(config, target, max_model_len, paging, spec_plan, cost=cost),
        speculation=speculation,
        runner=Runner(model, cache),
        verifier=Verification(sampler, max_model_len=max_model_len),
        plan=spec_plan,
        observer=observer,
        hidden_states=hidden_states,
        stuck_after_s=config.stuck_after_s or None,
        processor=processor_clock if info.device == "cpu" else None,
        draft_heads=slots if config.num_speculative_tokens else {},
        installed_heads=partial(_installed_heads, target, config.model_dir),
    )
    return Engine(parts)


def _draft_head_slots(
    config: EngineConfig,
    target: LoadedModel,
    head: DraftHead | None,
    find: Callable[[str], DraftHead | None] | None,
    plan: PagePlan,
    *,
    lent: KVCache | None,
) -> Mapping[str, DraftHeadSlot]:
    """Return a slot for the head of all requests, which serves all tenants, and empty ones for other heads.

    `lent`: the first head's cache, if it lends that: then it needs no pages for those that are lent.
    """
    find = find or partial(head_for, target=target, root=config.model_dir)
    all_pages = plan.num_pages + plan.num_lendable

    def slot(name: HeadProposerName, first: DraftHead | None) -> DraftHeadSlot:
        def proposer(head: DraftHead, lent: KVCache | None = None) -> HeadProposer:
            if name == DRAFT_HEAD and head.info.serves:
                message = f"draft head {head.info.name} serves {len(head.info.serves)} of the tenants; allowed"
                raise ModelLoadError(f"{message} in {DRAFT_HEAD}: heads that serve everybody; in other slots: all")
            num_pages = all_pages if lent is None else plan.num_pages
            return HeadProposer(head, num_pages=num_pages, max_sequences=config.max_requests, name=name, cache=lent)

        def load(head: str) -> HeadProposer | None:
            draft_head = find(head)
            if draft_head is None:
                return None
            check_head(draft_head.info, target.model.info.device, all_pages, config.max_requests)
            return proposer(draft_head)

        return DraftHeadSlot(load, target.model, proposer(first, lent) if first else None, proposer=name)

    return {name: slot(name, head if name == DRAFT_HEAD else None) for name in HEAD_PROPOSERS}


def _installed_heads(target: LoadedModel, root: Path | None) -> list[InstalledHead]:
    aliases = HeadAliases(root)
    return [
        InstalledHead(
            name=entry.name,
            version=entry.version,
            aliases=aliases.of(entry.name, entry.version),
            target=entry.target,
            misfit=misfit_of(entry, target),
            size=entry.size,
            chain_of_3=entry.provenance.chain_of_3,
            auto=seen_by_auto(entry, target.identity, root),
        )
        for entry in list_heads(root)
    ]


def _speculation(
    config: EngineConfig, vocab_size: int, proposers: Sequence[Proposer], cost: CostCurve, max_model_len: int
) -> Speculation:
    watch = CallWatch(config.propose_limit_ms / 1000.0 if config.propose_limit_ms else None)
    window = DraftWindow(cost, token_overhead_ms=0.01)
    drafters = ProposerSet(proposers, window, AcceptanceEstimator(), vocab_size, watch=watch)
    return Speculation(
        drafters,
        max_step_tokens=config.max_step_tokens,
        max_model_len=max_model_len,
        shadow_cost=config.shadow_cost,
        payback=Payback(drafters.explore),
    )


def _scheduler(
    config: EngineConfig, target: LoadedModel, max_model_len: int, paging: Paging, plan: AppliedPlan, *, cost: CostCurve
) -> Scheduler:
    size, ends = target.model.info.vocab_size, target.model.info.eos_token_ids
    limits = SchedulerLimits(config.max_requests, config.max_step_tokens, max_model_len, size, ends)
    grammars = Grammars(target.tokenizer.to_json, size, ends)
    chunks = ChunkLimit(config.chunk_limit_ms, cost)
    return Scheduler(limits, paging, plan, target.tokenizer, grammars, chunks=chunks)


def _paging(
    config: EngineConfig,
    folder: Path,
    plan: PagePlan,
    cache: KVCache,
    slots: Iterable[DraftHeadSlot],
    *,
    lender: Lender | None,
) -> Paging:
    """Return the paging of sequences; a page is copied and cleared in all caches that have one of its number.

    `folder`: for prefixes that are kept. They are the target's alone: a draft head begins behind them.
    """
    caches: tuple[KVCache | DraftHeadSlot, ...] = (cache, *slots)
    sizes = {"page_size": PAGE_SIZE, "num_lendable": plan.num_lendable}
    pool, kept = PagePool(plan.num_pages, **sizes, prefix_cache=config.prefix_cache), None
    if config.prefix_disk != "0" and config.prefix_cache:
        kept = KeptPrefixes(folder, parse_bytes(config.prefix_disk, name="prefix_disk"), pool, cache.views)
        kept.restore()

    def copy(source: int, target: int) -> None:
        for each in caches:
            each.copy_page(source, target)

    def clear(page: int) -> None:
        for each in caches:
            each.clear_page(page)

    return Paging(pool, copy, clear, kept, lender)


def proposer_names(config: EngineConfig) -> tuple[str, ...]:
    """Return the configured proposers; none if the ceiling is 0.

    Naming a draft model, a layer for early exit, or a propose server asks for its proposer. That of a draft head comes
    with the head, named here or not. The synthetic one drafts alone.

    Raises `ConfigError` for unknown names, and for a draft model, a layer or a server that is missing.
    """
    if config.num_speculative_tokens == 0 or config.synthetic:
        return (SYNTHETIC,) if config.num_speculative_tokens else ()
    known = [name for name in PROPOSER_NAMES if name != UPSTREAM]
    for name in config.proposers:
        if name not in known:
            raise ConfigError(f"proposers names {name!r}; allowed: {', '.join(known)}", param="proposers")
        if name in NAMED_HEADS:
            message = f"proposers names {name!r}, which is loaded while serving; `prolepsis heads swap` loads it"
            raise ConfigError(message, param="proposers")
    names = dict.fromkeys(config.proposers)
    settings = ((DRAFT_MODEL, "draft_model"), (EARLY_EXIT, "early_exit_layer"), (REMOTE, "remote_proposer"))
    for name, param in (*settings, (SYNTHETIC, SYNTHETIC)):
        if getattr(config, param) not in (None, ()):
            names.setdefault(name)
        elif name in names:
            raise ConfigError(f"proposers names {name!r}, but {param} is not set", param=param)
    return tuple(names)


def _proposers(
    config: EngineConfig,
    target: LoadedModel,
    draft: LoadedModel | None,
    observer: EngineObserver | None,
    num_pages: int,
    *,
    lent: KVCache | None,
) -> list[Proposer]:
    """Return the proposers that need nothing of the target's inside, in the configuration's order, remote ones last."""
    proposers: list[Proposer] = []
    for name in proposer_names(config):
        if name in FREE_PROPOSERS:
            proposers.append(FREE_PROPOSERS[name](config, target.tokenizer))
        elif name == DRAFT_MODEL:
            assert draft is not None, "the draft model is loaded with its proposer"
            own = draft.tokenizer, target.tokenizer
            proposers.append(DraftModelProposer(draft.model, *own, num_pages=num_pages, cache=lent))
    if REMOTE in proposer_names(config) and (terms := config.remote_proposer) is not None:
        address = Queue.of(config, digest := vocabulary_digest(target.tokenizer)) or RemoteAddress.of(config, digest)
        settings = RemoteSettings(terms.ahead, terms.wait_ms / 1000.0)
        observe = observer.observe if observer is not None else None
        size = target.model.info.vocab_size
        proposers.append(RemoteProposer(Link(address.connect), address.key, size, settings, observe=observe))
    return proposers


def _described(
    target: LoadedModel, max_model_len: int, exactness: Exactness, proposers: ProposerSet, slot: DraftHeadSlot
) -> EngineInfo:
    info = target.model.info
    return EngineInfo(
        model=info.name,
        forward=info.forward,
        vocab_size=info.vocab_size,
        max_model_len=max_model_len,
        fingerprint=target.fingerprint,
        exactness=exactness.mode,
        exactness_reason=exactness.reason,
        proposers=proposers.names,
        draft_head=slot.label,
        num_experts=info.num_experts,
        default_sampling=target.default_sampling,
        weights=target.weights[:16],
        tokenizer=target.tokenizer.fingerprint[:16],
        machine=machine_of(target.model),
        paying_loads=paying_loads(proposers.cost).describe() if proposers.names else "",
        files=target.files,
    )
