"""The controls of a server, put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openfeature.provider import FeatureProvider

from prolepsis.control.controls.controls import Controls
from prolepsis.control.controls.effective_plan import EffectivePlan
from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.controls.flag_file import FlagFile
from prolepsis.control.controls.flags_runtime import FlagsFeature
from prolepsis.control.controls.kill_switch_runtime import KillSwitch
from prolepsis.control.controls.known_scopes import KnownScopes
from prolepsis.control.controls.operator_flags import OperatorFlags
from prolepsis.control.store.controls import ControlTable
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.messages import ApplyPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorControls:
    controls: Controls
    kill_switch: KillSwitch
    flags: FlagsFeature

    @property
    def features(self) -> Sequence[Feature]:
        """All of them; the controls come first, as the others follow them."""
        return self.controls, self.kill_switch, self.flags


def effective_plan(context: Context) -> EffectivePlan:
    """Return the plan of the engine, before anything changes it."""
    return EffectivePlan(context.base_plan, lambda plan: context.client.send(ApplyPlan(plan)))


def feature(
    context: Context,
    plan: EffectivePlan,
    *,
    flags: FlagFile | FeatureProvider | None,
    flags_of_policy: Callable[[], Sequence[str]],
    known: KnownScopes,
) -> OperatorControls:
    """Return them; `known`: what has a scope of the kill switch here."""
    registry, emit = context.registry, context.emit
    file, table = ControlsFile(context.config.controls_file), ControlTable(context.database)
    controls = Controls(file, table, now=context.wall)
    kill_switch = KillSwitch(controls, plan.kill, registry, known=known, emit=emit)
    operators, follow = OperatorFlags(controls), kill_switch.follow
    features = FlagsFeature(
        flags, operators, registry, on_kill=follow, of_policy=flags_of_policy, emit=emit, clock=context.monotonic
    )
    return OperatorControls(controls=controls, kill_switch=kill_switch, flags=features)
