"""The rollouts of a server, the silences of their alerts, and the evidence of drafts in shadow."""

from collections.abc import Collection, Mapping
from functools import partial

from prolepsis.control.policy.runtime import Policies
from prolepsis.control.replicas.registry import ReplicaRegistry
from prolepsis.control.rollout.routes import rollout_routes
from prolepsis.control.rollout.runtime import Rollouts, audit_event
from prolepsis.control.rollout.shadow_runtime import ShadowFeature
from prolepsis.control.rollout.silences import OFF, Silences, deployment_id, instances_of
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.store.controls import ControlTable
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.engine_client import weights_of


def feature(context: Context) -> Rollouts:
    """Return the rollouts; those in a store in memory end with the server."""
    client = context.client
    rollouts = Rollouts(
        RolloutStore(context.database, context.clock),
        client.send,
        context.registry,
        model=client.info.model,
        notify=lambda event: context.emit(audit_event(event)),
        weights_of=partial(weights_of, client),
        has_head=lambda proposer: bool(client.info.heads.get(proposer)),
        clock=context.clock,
    )
    rollouts.routes = rollout_routes(rollouts)
    return rollouts


def silences(context: Context, rollouts: Rollouts, replicas: ReplicaRegistry) -> Feature:
    """Return the feature that sends Alertmanager the stages of rollouts, if there is one."""
    config = context.config
    if config.alertmanager == OFF:
        return Feature()

    def labels() -> Mapping[str, Collection[str]]:
        instances = instances_of(replicas.addresses)
        return {"model": [context.client.info.model], "region": [config.region], "instance": instances}

    made = Silences(
        config.alertmanager,
        context.registry,
        emit=context.emit,
        deployment=partial(deployment_id, ControlTable(context.database)),
        labels=labels,
        clock=context.wall,
        skipped=context.skipped,
    )
    rollouts.listen(made.on_change)
    return made


def shadow(context: Context, policies: Policies) -> ShadowFeature:
    """Return what collects the evidence of drafts in shadow."""
    return ShadowFeature(lambda: context.client.info, policy=lambda: policies.version)
