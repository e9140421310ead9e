"""Prolepsis: speculative decoding for production, with the target model's own output and nothing else.

The names below are the public surface of the package; each is imported when it is first used, so that importing the
package itself stays quick and needs no torch.
"""

from typing import TYPE_CHECKING

from prolepsis.core.exports import lazily

if TYPE_CHECKING:
    from prolepsis.core.config import EngineConfig as EngineConfig
    from prolepsis.core.config import ServerConfig as ServerConfig
    from prolepsis.core.engine_client import EngineClient as EngineClient
    from prolepsis.core.errors import ProlepsisError as ProlepsisError
    from prolepsis.core.plan import SpecPlan as SpecPlan
    from prolepsis.core.requests import GenerateRequest as GenerateRequest
    from prolepsis.core.requests import SamplingParams as SamplingParams
    from prolepsis.core.requests import SpeculationChoice as SpeculationChoice
    from prolepsis.engine.drafting.draft import Draft as Draft
    from prolepsis.engine.drafting.proposer import Proposer as Proposer

__version__ = "0.1.0"

_HOMES = {
    "Draft": "prolepsis.engine.drafting.draft",
    "EngineClient": "prolepsis.core.engine_client",
    "EngineConfig": "prolepsis.core.config",
    "GenerateRequest": "prolepsis.core.requests",
    "ProlepsisError": "prolepsis.core.errors",
    "Proposer": "prolepsis.engine.drafting.proposer",
    "SamplingParams": "prolepsis.core.requests",
    "ServerConfig": "prolepsis.core.config",
    "SpecPlan": "prolepsis.core.plan",
    "SpeculationChoice": "prolepsis.core.requests",
}

__all__ = [
    "Draft",
    "EngineClient",
    "EngineConfig",
    "GenerateRequest",
    "ProlepsisError",
    "Proposer",
    "SamplingParams",
    "ServerConfig",
    "SpecPlan",
    "SpeculationChoice",
    "__version__",
]
__getattr__, __dir__ = lazily(__name__, _HOMES)
