"""The engine, usable alone: a model, its proposers, and the step that verifies what they draft.

    from prolepsis.engine import EngineConfig, start_engine

    running = start_engine(EngineConfig(model="smollm2-135m-instruct"))
    # running.client.generate(request) yields the events of one request; running.tokenizer encodes and decodes

The names below are its public surface. Each is imported when it is first used, so clients of engines elsewhere need no
torch.
"""

from typing import TYPE_CHECKING

from prolepsis.core.exports import lazily

if TYPE_CHECKING:
    from prolepsis.core.config import EngineConfig as EngineConfig
    from prolepsis.core.engine_client import EngineClient as EngineClient
    from prolepsis.core.plan import SpecPlan as SpecPlan
    from prolepsis.core.requests import GenerateRequest as GenerateRequest
    from prolepsis.core.requests import SamplingParams as SamplingParams
    from prolepsis.core.requests import SpeculationChoice as SpeculationChoice
    from prolepsis.engine.build import build_engine as build_engine
    from prolepsis.engine.drafting.draft import Draft as Draft
    from prolepsis.engine.drafting.proposer import Proposer as Proposer
    from prolepsis.engine.start import start_engine as start_engine

_HOMES = {
    "Draft": "prolepsis.engine.drafting.draft",
    "EngineClient": "prolepsis.core.engine_client",
    "EngineConfig": "prolepsis.core.config",
    "GenerateRequest": "prolepsis.core.requests",
    "Proposer": "prolepsis.engine.drafting.proposer",
    "SamplingParams": "prolepsis.core.requests",
    "SpecPlan": "prolepsis.core.plan",
    "SpeculationChoice": "prolepsis.core.requests",
    "build_engine": "prolepsis.engine.build",
    "start_engine": "prolepsis.engine.start",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazily(__name__, _HOMES)
