"""The services that the HTTP routes of a model share: engine client, tokenizer, admission and features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prolepsis.api.admission.controller import AdmissionController
from prolepsis.api.auth.keys import Keys
from prolepsis.api.features import Features
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError, ModelNotFound
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
    """The services for requests: engine, tokenizer and features."""

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


class Models:
    """The models behind one address, by the names that requests may use; each has services of its own."""

    def __init__(self, all: Sequence[Services]) -> None:
        """Raises `ConfigError` for a name that two models have."""
        self._by_name: dict[str, Services] = {}
        for services in all:
            for name in services.model_names:
                if name in self._by_name:
                    message = f"served_model_names: {name!r} is the name of two models; allowed: one name, one model"
                    raise ConfigError(message, param="served_model_names")
                self._by_name[name] = services

    def allowed(self, caller: Caller) -> Mapping[str, Services]:
        """Return the models that the caller's key may use."""
        return {name: services for name, services in self._by_name.items() if caller.may_use(name)}

    def of(self, name: str | None, caller: Caller) -> Services:
        """Return the services of a model; None stands for the first one that the caller may use.

        Raises `ModelNotFound` unless it is served, `Refused` (403) where the caller's key may not use it.
        """
        if name is None:
            name = next(iter(self.allowed(caller)), next(iter(self._by_name)))
        if name not in self._by_name:
            served = ", ".join(self._by_name)
            raise ModelNotFound(f"The model {name[:128]!r} does not exist; served here: {served}.", param="model")
        if not caller.may_use(name):
            raise model_not_allowed(name, caller.models)
        return self._by_name[name]
