"""The features of safety, put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from openfeature.provider import FeatureProvider
from prometheus_client import CollectorRegistry

from prolepsis.core.audit_event import Emit
from prolepsis.core.config import ServerConfig
from prolepsis.engine.client import EngineClient
from prolepsis.safety.baselines import BaselineStore
from prolepsis.safety.breaker import Breakers, BreakerSettings
from prolepsis.safety.breaker_runtime import BreakerFeature, breaker_file
from prolepsis.safety.drift import DriftStreams
from prolepsis.safety.drift_runtime import DriftFeature
from prolepsis.safety.effective_plan import EffectivePlan
from prolepsis.safety.flags_runtime import FlagsFeature
from prolepsis.safety.kill_switch import kill_file
from prolepsis.safety.kill_switch_runtime import KillSwitch
from prolepsis.safety.known_scopes import KnownScopes
from prolepsis.safety.shared_controls import SharedControls, copy_file
from prolepsis.safety.shared_flags import SharedFlags
from prolepsis.store.controls import ControlTable
from prolepsis.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Safety:
    """Everything that may turn speculation off."""

    controls: SharedControls
    kill_switch: KillSwitch
    flags: FlagsFeature
    breaker: BreakerFeature
    drift: DriftFeature


def safety_features(
    config: ServerConfig,
    client: EngineClient,
    plan: EffectivePlan,
    registry: CollectorRegistry,
    *,
    flags: FeatureProvider | None,
    flags_of_policy: Callable[[], Sequence[str]],
    version_of: Callable[[str], str],
    known: KnownScopes,
    database: Database | None,
    emit: Emit,
) -> Safety:
    """Return them for an engine; `version_of` names what a proposer drafts with, `database` is the store's.

    `known`: what has a scope of the kill switch here.
    """
    file = kill_file(config.kill_file)
    table = ControlTable(database) if database is not None else None
    controls = SharedControls(table, copy_file(file.path.with_name("controls.json")))
    shared = controls if table is not None else None  # without a store, switch and breakers have files of their own
    kill_switch = KillSwitch(file, plan.kill, registry, shared=shared, known=known, emit=emit)
    breaker = _breaker(config, client, plan, registry, shared=shared, emit=emit)
    streams = DriftStreams() if config.drift == "on" else None
    on_cliff = partial(breaker.trip, reason="cliff") if config.drift_cliff == "open_breaker" else None
    baselines = BaselineStore(database) if database is not None else None
    counts = client.proposer_counts
    return Safety(
        controls=controls,
        kill_switch=kill_switch,
        flags=FlagsFeature(
            flags, SharedFlags(controls), registry, on_kill=kill_switch.follow, of_policy=flags_of_policy, emit=emit
        ),
        breaker=breaker,
        drift=DriftFeature(streams, counts, version_of, registry, emit=emit, on_cliff=on_cliff, store=baselines),
    )


def _breaker(
    config: ServerConfig,
    client: EngineClient,
    plan: EffectivePlan,
    registry: CollectorRegistry,
    *,
    shared: SharedControls | None,
    emit: Emit,
) -> BreakerFeature:
    least = config.breaker_min_acceptance
    settings = BreakerSettings(min_acceptance=least, acceptance_to_close=1.5 * least)
    breakers = Breakers(settings, metrics_only=config.breaker == "metrics_only")
    return BreakerFeature(
        None if config.breaker == "off" else breakers,
        client.proposer_counts,
        plan.disable,
        registry,
        file=breaker_file(config.breaker_file),
        shared=shared,
        proposers=lambda: client.info.proposers,
        emit=emit,
    )
