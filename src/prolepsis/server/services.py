"""What the HTTP routes of a model share: engine client, tokenizer, and the features that requests pass through."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.refusals import model_not_allowed
from prolepsis.core.errors import ConfigError, ModelNotFound
from prolepsis.ops.tracing.traces import Traces
from prolepsis.server.answering.idempotency import Idempotency
from prolepsis.server.answering.stored_responses import StoredResponses
from prolepsis.server.corpora import Corpora
from prolepsis.server.front.keys import Keys
from prolepsis.server.preparing.prepare import ModelParts
from prolepsis.server.status.recorder import Recorder
from prolepsis.server.status.service_health import ServiceHealth
from prolepsis.server.writers import Writers


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(ModelParts):
    """What the routes of one model and the application need besides; the features by name are all in `features`."""

    keys: Keys
    idempotency: Idempotency
    responses: StoredResponses
    recorder: Recorder
    service_health: ServiceHealth
    tracing: Traces
    corpora: Corpora
    writers: Writers
    started: int = field(default_factory=lambda: int(time.time()))  # Unix time in seconds

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.config.served_model_names or (self.client.info.model,)


class Models:
    """The models behind one address, by the names that requests may use; each has services of its own."""

    def __init__(self, all: Sequence[Services]) -> None:
        """Raises `ConfigError` for a name that two models have."""
        self.by_name: dict[str, Services] = {}
        for services in all:
            for name in services.model_names:
                if name in self.by_name:
                    message = f"served_model_names: {name!r} is the name of two models; allowed: one name, one model"
                    raise ConfigError(message, param="served_model_names")
                self.by_name[name] = services

    @property
    def names(self) -> Sequence[str]:
        return list(self.by_name)

    def allowed(self, caller: Caller) -> Mapping[str, Services]:
        return {name: services for name, services in self.by_name.items() if caller.may_use(name)}

    def first(self, caller: Caller) -> str:
        """Return the first model that the caller may use, by which a request without a name is answered."""
        return next(iter(self.allowed(caller)), next(iter(self.by_name)))

    def of(self, name: str | None, caller: Caller) -> Services:
        """Return the services of a model; without a name, of the first one that the caller may use.

        Raises `ModelNotFound` unless it is served, `Refused` (403) where the caller's key may not use it.
        """
        name = name or self.first(caller)
        if name not in self.by_name:
            served = ", ".join(self.by_name)
            raise ModelNotFound(f"The model {name[:128]!r} does not exist; served here: {served}.", param="model")
        if not caller.may_use(name):
            raise model_not_allowed(name, caller.models)
        return self.by_name[name]
