"""What the HTTP routes share: the engine's client, its tokenizer, admission and the features."""

from dataclasses import dataclass, field

from prolepsis.api.admission.controller import AdmissionController
from prolepsis.api.auth.keys import Keys
from prolepsis.api.features import Features
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ModelNotFound
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.client import EngineClient
from prolepsis.web.caller import Caller
from prolepsis.web.intake import Intake
from prolepsis.web.refusals import model_not_allowed


@dataclass(frozen=True, slots=True)
class Gateway:
    """Keys and the plan that load shedding starts from; without keys, callers on this machine are the developer."""

    keys: Keys = field(default_factory=lambda: Keys(None))
    base_plan: SpecPlan = field(default_factory=SpecPlan)
    """The engine's plan at the lowest level of load shedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What serves requests: the engine, its tokenizer and the features."""

    config: ServerConfig
    client: EngineClient
    tokenizer: Tokenizer
    started: int
    """Unix time in seconds."""
    features: Features
    intake: Intake

    @property
    def admission(self) -> AdmissionController:
        return self.features.admission

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.config.served_model_names or (self.client.info.model,)

    def check_model(self, name: str | None, caller: Caller | None = None) -> None:
        """Raise `ModelNotFound` unless `name` is served, `Refused` (403) where the caller's key may not use it.

        None: the one model that there is, under any of its names.
        """
        if name is None:
            name = next((one for one in self.model_names if caller is None or caller.may_use(one)), self.model_names[0])
        if name not in self.model_names:
            served = ", ".join(self.model_names)
            raise ModelNotFound(f"The model {name[:128]!r} does not exist; served here: {served}.", param="model")
        if caller is not None and not caller.may_use(name):
            raise model_not_allowed(name, caller.models)
