"""Admission of a server, and the buckets of the rate limits that servers share."""

from prolepsis.control.controls.effective_plan import EffectivePlan
from prolepsis.control.replicas.registry import ReplicaRegistry
from prolepsis.control.store.allowances import AllowanceTable
from prolepsis.control.web.context import Context
from prolepsis.server.admission.controller import AdmissionController
from prolepsis.server.admission.leased_buckets import LeasedBuckets
from prolepsis.server.admission.metrics import AdmissionMetrics


def buckets(context: Context, replicas: ReplicaRegistry) -> LeasedBuckets:
    """Return the buckets of limits that hold over all servers of a store."""
    return LeasedBuckets(AllowanceTable(context.database), lambda: replicas.num_sharing, context.monotonic)


def feature(context: Context, plan: EffectivePlan, shared: LeasedBuckets) -> AdmissionController:
    config = context.config
    is_limited = config.requests_per_minute or config.tokens_per_minute
    return AdmissionController(
        config,
        context.client,
        AdmissionMetrics(context.registry),
        context.base_plan,
        context.monotonic,
        apply_plan=plan.shed,
        find_bucket=shared.bucket if is_limited and context.database.is_kept else None,
    )
