"""The policy of a server: that of a file, else the store's; without a store that lasts callers decide alone."""

from datetime import UTC, datetime

from prolepsis.control.policy.check import Known
from prolepsis.control.policy.routes import policy_routes
from prolepsis.control.policy.runtime import Assigner, Policies
from prolepsis.control.policy.source import GivenPolicy, PolicySource, StoredPolicy
from prolepsis.control.web.context import Context


def feature(
    context: Context, rollouts: Assigner, given: PolicySource | None, known: Known, *, flags: bool, bills_time: bool
) -> Policies:
    """Return the policy in use; `known`: names that every server knows. `flags` and `bills_time` as `Policies`."""
    source = given or (StoredPolicy(context.database, known) if context.database.is_kept else GivenPolicy())
    policies = Policies(
        source,
        context.client.info.proposers,
        rollouts,
        now=lambda: datetime.fromtimestamp(context.wall(), UTC),
        emit=context.emit,
        flags=flags,
        replays=context.config.replay_sample > 0.0,
        bills_time=bills_time,
    )
    policies.routes = policy_routes(policies)
    return policies
