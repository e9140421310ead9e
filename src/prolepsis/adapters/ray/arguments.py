"""The arguments of the application for Ray Serve, as a configuration file of Serve gives them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from prolepsis.adapters.ray.autoscaling import Scaling
from prolepsis.adapters.ray.start import check
from prolepsis.control.store.database import store_url
from prolepsis.core.config import EngineConfig, ServerConfig, without_password
from prolepsis.core.errors import ConfigError
from prolepsis.core.validation import first_problem

Section = TypeVar("Section", bound=BaseModel)

DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class ReplicatedModel:
    """One model: its engines, and the server in front of them."""

    engine: EngineConfig
    server: ServerConfig

    @property
    def scaling(self) -> Scaling:
        return Scaling.of(self.server)


class ModelSettings(BaseModel):
    """What one of several models has of its own: settings of `prolepsis serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Mapping[str, Any] = Field(default_factory=dict)
    server: Mapping[str, Any] = Field(default_factory=dict)


class ServeArguments(BaseModel):
    """`engine` and `server` are the settings of `prolepsis serve`, the number of replicas among them.

    A replica with `threads` claims as many CPUs of the cluster; without, it claims none and takes all of its machine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineConfig = Field(default_factory=EngineConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    models: Mapping[str, ModelSettings] = Field(default_factory=dict)
    """Several models by the names that requests use, each with settings of its own besides those of all."""
    front_ends: int = Field(default=1, ge=1)
    """Number of front ends; more than one need a store that they share, such as PostgreSQL."""
    drain_s: float = Field(default=DRAIN_S, ge=0)
    """Seconds in which the requests of a replica may end before it does."""
    release: str = ""  # any text; another text restarts all replicas, one after the other

    @model_validator(mode="after")
    def _check(self) -> Self:
        stores: dict[str, str] = {}
        for model in self.served:
            try:
                check(model.engine)
                url = store_url(model.server.store)
            except ConfigError as error:
                raise ValueError(str(error)) from None
            if url is None and self.front_ends > 1:
                raise ValueError(f"front_ends is {self.front_ends}, store none; allowed: a store that they share")
            if url is None:
                continue
            name = ", ".join(model.server.served_model_names)
            holder = stores.setdefault(str(url), name)
            if holder != name:
                shown = without_password(model.server.store)
                raise ValueError(f"the models {holder} and {name} have the store {shown}; allowed: one each, or none")
        return self

    @property
    def served(self) -> Sequence[ReplicatedModel]:
        """The models, with all their settings."""
        if not self.models:
            return [ReplicatedModel(self.engine, self.server)]
        return [self._with(name, own) for name, own in self.models.items()]

    def _with(self, name: str, own: ModelSettings) -> ReplicatedModel:
        engine = {**self.engine.model_dump(exclude_unset=True), **own.engine}
        server = {**self.server.model_dump(exclude_unset=True), "served_model_names": (name,), **own.server}
        path = f"models.{name}"
        return ReplicatedModel(
            _valid(EngineConfig, engine, f"{path}.engine"), _valid(ServerConfig, server, f"{path}.server")
        )


def _valid(section: type[Section], values: Mapping[str, Any], path: str) -> Section:
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"{path}.{first_problem(error, section, values)}") from None


def checked(arguments: Mapping[str, Any]) -> ServeArguments:
    """Return the arguments of a file; raises `ConfigError` that names what was given and what is allowed."""
    try:
        return ServeArguments.model_validate(arguments)
    except ValidationError as error:
        problem = first_problem(error, ServeArguments, arguments)
        raise ConfigError(str(problem) if problem.path else problem.reason) from None
