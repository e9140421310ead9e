"""What the HTTP routes share: the engine's client, its tokenizer, the configuration."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.api.admission.controller import AdmissionController
from prolepsis.api.output.chain import OutputPolicies
from prolepsis.api.output.delivery import DeliveryFeature
from prolepsis.api.recorder import Recorder
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.core.audit_event import Emit
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ModelNotFound
from prolepsis.correctness.runtime import ReplayFeature
from prolepsis.engine.client import EngineClient
from prolepsis.policy.runtime import Policies
from prolepsis.safety.flags_runtime import FlagsFeature
from prolepsis.safety.kill_switch_runtime import KillSwitch
from prolepsis.web.caller import Caller
from prolepsis.web.feature import Feature
from prolepsis.web.refusals import model_not_allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    config: ServerConfig
    client: EngineClient
    tokenizer: Tokenizer
    admission: AdmissionController
    started: int
    """Unix time in seconds."""
    kill_switch: KillSwitch
    flags: FlagsFeature | None
    """None: none are configured."""
    policies: Policies | None
    """None: callers decide alone, as their roles allow."""
    recorder: Recorder
    emit: Emit
    output: OutputPolicies
    delivery: DeliveryFeature
    replays: ReplayFeature
    features: Sequence[Feature]
    """All of them, for what every request tells them."""

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.config.served_model_names or (self.client.info.model,)

    def check_model(self, name: str, caller: Caller | None = None) -> None:
        """Raise `ModelNotFound` unless `name` is served, `Refused` (403) where the caller's key may not use it."""
        if name not in self.model_names:
            served = ", ".join(self.model_names)
            raise ModelNotFound(f"The model {name[:128]!r} does not exist; served here: {served}.", param="model")
        if caller is not None and not caller.may_use(name):
            raise model_not_allowed(name, caller.models)
