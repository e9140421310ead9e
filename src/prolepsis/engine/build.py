"""From a configuration to an engine: the one place that puts the engine room together."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import structlog

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.client import EngineInfo
from prolepsis.engine.exactness import Exactness, decide
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.paging import Paging
from prolepsis.engine.profile import cost_curve, curve_file
from prolepsis.engine.runner import Runner
from prolepsis.engine.scheduler import Scheduler, SchedulerLimits
from prolepsis.engine.showing import Showing
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine, EngineParts
from prolepsis.engine.verification import Verification
from prolepsis.grammar.grammars import Grammars
from prolepsis.kv.pages import PagePool
from prolepsis.kv.plan import parse_bytes, plan_pages
from prolepsis.models.load import LoadedModel, load_model
from prolepsis.models.protocol import PAGE_SIZE, TargetModel
from prolepsis.native.processor import default_threads
from prolepsis.sampling.sampler import Sampler
from prolepsis.spec.acceptance import AcceptanceEstimator
from prolepsis.spec.cost import CostCurve, flat_cost
from prolepsis.spec.features import FeatureConsumer
from prolepsis.spec.proposer import Proposer
from prolepsis.spec.proposers.draft_model import DraftModel
from prolepsis.spec.proposers.grammar import Grammar
from prolepsis.spec.proposers.prediction import Prediction
from prolepsis.spec.proposers.prompt_lookup import PromptLookup
from prolepsis.spec.proposers.suffix import Suffix
from prolepsis.spec.selection import ProposerSet
from prolepsis.spec.window import Window

log = structlog.get_logger(__name__)

FREE_PROPOSERS: dict[str, Callable[[EngineConfig], Proposer]] = {
    "grammar": lambda config: Grammar(),
    "suffix": lambda config: Suffix(parse_bytes(config.suffix_memory, name="suffix_memory")),
    "prompt_lookup": lambda config: PromptLookup(),
    "prediction": lambda config: Prediction(),
}
"""Proposers that need nothing but the configuration."""

DRAFT_MODEL = "draft_model"


@runtime_checkable
class Preparing(Protocol):
    """A model that gets faster in the background."""

    def pending(self) -> tuple[int, ...]:
        """Row counts still being compiled."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending; True if so."""


def build_engine(config: EngineConfig, observer: EngineObserver | None = None) -> Engine:
    """Load the model that `config` names and return an engine around it.

    Raises `ConfigError`, `ModelError` and `MemoryPlanError`, each saying what was given and what is allowed.
    """
    names = proposer_names(config)
    target = load_model(config)
    draft = load_model(config, config.draft_model) if DRAFT_MODEL in names else None
    return assemble(config, target, draft, observer)


def assemble(
    config: EngineConfig,
    target: LoadedModel,
    draft: LoadedModel | None = None,
    observer: EngineObserver | None = None,
    consumers: Sequence[FeatureConsumer] = (),
) -> Engine:
    """Return an engine around loaded models; `consumers` see the target's hidden states."""
    model, info = target.model, target.model.info
    max_model_len = context_length(config, info.max_positions)
    exactness = exactness_of(model, config)
    page_bytes = info.page_bytes + (draft.model.info.page_bytes if draft else 0)
    num_pages = plan_pages(config.kv_memory, page_bytes=page_bytes, page_size=PAGE_SIZE, max_model_len=max_model_len)
    cache = model.make_cache(num_pages)
    pool = PagePool(num_pages, PAGE_SIZE, prefix_cache=config.prefix_cache)
    limits = SchedulerLimits(
        config.max_requests, config.max_step_tokens, max_model_len, info.vocab_size, info.eos_token_ids
    )
    grammars = Grammars(target.tokenizer.to_json, info.vocab_size, info.eos_token_ids)
    scheduler = Scheduler(limits, Paging(pool, cache.copy_page), target.tokenizer, grammars)
    scheduler.plan = SpecPlan(num_speculative_tokens=config.num_speculative_tokens)
    proposers = make_proposers(config, target, draft, num_pages)
    window = Window(_cost(config, target, speculates=bool(proposers)))
    chosen = ProposerSet(proposers, window, AcceptanceEstimator(), info.vocab_size)
    sampler = Sampler(info.vocab_size, info.eos_token_ids, threads=config.threads or default_threads())
    log.info("engine_built", model=info.name, forward=info.forward, pages=num_pages, exactness=exactness.mode)
    showing = Showing(consumers)
    parts = EngineParts(
        info=EngineInfo(
            model=info.name,
            forward=info.forward,
            vocab_size=info.vocab_size,
            max_model_len=max_model_len,
            fingerprint=target.fingerprint,
            exactness=exactness.mode,
            exactness_reason=exactness.reason,
            proposers=chosen.names,
        ),
        scheduler=scheduler,
        speculation=Speculation(chosen, max_step_tokens=config.max_step_tokens, max_model_len=max_model_len),
        runner=Runner(model, cache, showing.taps),
        verifier=Verification(sampler, max_model_len=max_model_len),
        observer=observer,
        showing=showing,
        preparing=lambda: preparation(model),
    )
    return Engine(parts)


def proposer_names(config: EngineConfig) -> tuple[str, ...]:
    """Return the proposers to load; none where the ceiling is 0. Naming a draft model asks for its proposer.

    Raises `ConfigError` for unknown names and for a draft model that is missing.
    """
    if config.num_speculative_tokens == 0:
        return ()
    allowed = (*FREE_PROPOSERS, DRAFT_MODEL)
    for name in config.proposers:
        if name not in allowed:
            raise ConfigError(f"proposers names {name!r}; allowed: {', '.join(allowed)}", param="proposers")
    names = tuple(dict.fromkeys(config.proposers))
    if config.draft_model is None and DRAFT_MODEL in names:
        raise ConfigError("proposers names 'draft_model', but draft_model names no model", param="draft_model")
    return names if config.draft_model is None or DRAFT_MODEL in names else (*names, DRAFT_MODEL)


def make_proposers(
    config: EngineConfig, target: LoadedModel, draft: LoadedModel | None, num_pages: int
) -> Sequence[Proposer]:
    """Return the configured proposers, free ones first where the configuration has them so."""
    proposers: list[Proposer] = []
    for name in proposer_names(config):
        if name != DRAFT_MODEL:
            proposers.append(FREE_PROPOSERS[name](config))
        else:
            assert draft is not None, "the draft model is loaded where its proposer is asked for"
            proposers.append(DraftModel(draft.model, draft.tokenizer, target.tokenizer, num_pages=num_pages))
    return proposers


def context_length(config: EngineConfig, max_positions: int) -> int:
    """Return the longest sequence served; raises `ConfigError` for one the model cannot hold."""
    if config.max_model_len is not None and config.max_model_len > max_positions:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}; allowed for this model: at most {max_positions}",
            param="max_model_len",
        )
    return config.max_model_len or max_positions


def exactness_of(model: TargetModel, config: EngineConfig) -> Exactness:
    """Return the mode of exactness. A self-check counts only for kernels that stay: strict 'on' waits for them."""
    if isinstance(model, Preparing) and model.pending():
        if config.strict != "on":
            return Exactness("normal", "the forward is compiled in the background, so kernels change while it serves")
        model.wait()
    return decide(model, config.strict)


def preparation(model: TargetModel) -> str:
    """Return what a model still does in the background, or nothing."""
    pending = model.pending() if isinstance(model, Preparing) else ()
    return f"compiling for {', '.join(map(str, pending))} rows" if pending else ""


def _cost(config: EngineConfig, target: LoadedModel, *, speculates: bool) -> CostCurve:
    """Return the profiled cost of a pass; not measured where nothing asks for it."""
    if not speculates:
        return flat_cost()
    return cost_curve(target.model, curve_file(target.fingerprint, config.threads or default_threads()))
