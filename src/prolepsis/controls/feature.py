"""The controls of a server, put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openfeature.provider import FeatureProvider
from prometheus_client import CollectorRegistry

from prolepsis.controls.controls import Controls
from prolepsis.controls.effective_plan import EffectivePlan
from prolepsis.controls.file import ControlsFile
from prolepsis.controls.flag_file import FlagFile
from prolepsis.controls.flags_runtime import FlagsFeature
from prolepsis.controls.kill_switch_runtime import KillSwitch
from prolepsis.controls.known_scopes import KnownScopes
from prolepsis.controls.operator_flags import OperatorFlags
from prolepsis.core.audit_event import Emit
from prolepsis.core.config import ServerConfig
from prolepsis.store.controls import ControlTable
from prolepsis.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorControls:
    """The kill switch, the flags, and the controls that both follow."""

    controls: Controls
    kill_switch: KillSwitch
    flags: FlagsFeature


def operator_controls(
    config: ServerConfig,
    plan: EffectivePlan,
    registry: CollectorRegistry,
    *,
    flags: FlagFile | FeatureProvider | None,
    flags_of_policy: Callable[[], Sequence[str]],
    known: KnownScopes,
    database: Database | None,
    emit: Emit,
) -> OperatorControls:
    """Return them; `database` is the store's. `known`: what has a scope of the kill switch here."""
    table = ControlTable(database) if database is not None else None
    controls = Controls(ControlsFile(config.controls_file), table)
    kill_switch = KillSwitch(controls, plan.kill, registry, known=known, emit=emit)
    operators, follow = OperatorFlags(controls), kill_switch.follow
    features = FlagsFeature(flags, operators, registry, on_kill=follow, of_policy=flags_of_policy, emit=emit)
    return OperatorControls(controls=controls, kill_switch=kill_switch, flags=features)
