"""Puts an engine of ours around a data plane: our scheduler, drafts and sampler, its passes and K/V."""

import asyncio
from dataclasses import replace

from prolepsis.adapters.vllm.chains import ChainProposer
from prolepsis.adapters.vllm.data_plane import DataPlane
from prolepsis.adapters.vllm.runner import DataPlaneRunner
from prolepsis.core.config import DRAFT_HEAD, EngineConfig, HeadProposerName
from prolepsis.core.engine_client import EngineInfo, HeadSwapped
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.figures import EngineObserver
from prolepsis.core.plan import AppliedPlan, SpecPlan
from prolepsis.engine.build import FREE_PROPOSERS, proposer_names
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.call_watch import CallWatch
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.window import DraftWindow
from prolepsis.engine.kv.pages import PagePool
from prolepsis.engine.paging import Paging
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.scheduler import Scheduler, SchedulerLimits
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine, EngineParts
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.stream import Detokenizer
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.engine.verification import Verification


def assemble(
    config: EngineConfig,
    plane: DataPlane,
    info: EngineInfo,
    eos_token_ids: tuple[int, ...],
    *,
    tokenizer: Detokenizer | None = None,
    grammars: Grammars | None = None,
    observer: EngineObserver | None = None,
) -> Engine:
    """Return an engine whose passes run in `plane`; `info` is without proposers.

    The pages of our scheduler are an account of the plane's blocks, so that it never runs more sequences than have
    room there. The prefix cache is the plane's.
    """
    max_model_len = info.max_model_len
    proposers = _proposers(config, info.vocab_size)
    plan = AppliedPlan(SpecPlan(num_speculative_tokens=config.num_speculative_tokens))
    limits = SchedulerLimits(
        config.max_requests,
        config.max_step_tokens,
        max_model_len,
        info.vocab_size,
        eos_token_ids,
        scores_prompts=False,
    )
    paging = Paging(PagePool(plane.num_blocks, plane.block_size, prefix_cache=False), _no_copy, _no_clearing)
    scheduler = Scheduler(limits, paging, plan, tokenizer, grammars)
    sampler = Sampler(info.vocab_size, eos_token_ids)
    parts = EngineParts(
        info=replace(info, proposers=proposers.names),
        plan=plan,
        scheduler=scheduler,
        speculation=Speculation(
            proposers,
            max_step_tokens=config.max_step_tokens,
            max_model_len=max_model_len,
            shadow_cost=config.shadow_cost,
            payback=Payback(proposers.explore),
        ),
        runner=DataPlaneRunner(plane, lambda: scheduler.running),
        verifier=Verification(sampler, max_model_len=max_model_len),
        observer=observer,
        stuck_after_s=config.stuck_after_s or None,
    )
    return Engine(parts)


def _proposers(config: EngineConfig, vocab_size: int) -> ProposerSet:
    return ProposerSet(
        [ChainProposer(FREE_PROPOSERS[name](config, None)) for name in proposer_names(config)],
        DraftWindow(flat_cost(), token_overhead_ms=0.01),
        AcceptanceEstimator(),
        vocab_size,
        watch=CallWatch(config.propose_limit_ms / 1000.0 if config.propose_limit_ms else None),
    )


def _no_copy(source: int, target: int) -> None:
    """The data plane copies for itself."""


def _no_clearing(page: int) -> None:
    """The data plane's blocks are its own: its attention answers for what they store."""


class VllmEngineClient(ThreadEngineClient):
    """An `EngineClient`: our engine steps in its own thread, and vLLM's scheduler and worker run in that thread too.

    So plans, stopped runs, aborts and deadlines are obeyed at the next step, by requests in flight as well.
    """

    def __init__(self, engine: Engine, plane: DataPlane) -> None:
        super().__init__(engine)
        self._plane = plane

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        """Refuse: draft heads need hidden states, which vLLM does not show."""
        raise InvalidParameter(f"{proposer} is {name!r}; allowed with engine vllm: none", param=proposer)

    async def close(self) -> None:
        was_open = self.health().detail != "closed"
        await super().close()
        if was_open and not self.watchdog.gave_up:
            await asyncio.to_thread(self._plane.close)  # it takes seconds, and other engines serve meanwhile
