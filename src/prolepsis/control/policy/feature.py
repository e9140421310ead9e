"""The policy of a server: that of a file, else the store's; without a store that lasts callers decide alone."""

from prolepsis.control.policy.check import Known
from prolepsis.control.policy.routes import policy_routes
from prolepsis.control.policy.runtime import Assigner, Policies
from prolepsis.control.policy.source import NoPolicy, PolicyFile, PolicySource, StoredPolicy
from prolepsis.control.web.context import Context


def feature(
    context: Context, rollouts: Assigner, file: PolicyFile | None, known: Known, *, flags: bool, bills_time: bool
) -> Policies:
    """Return the policy in use; `known`: names that every server knows. `flags` and `bills_time` as `Policies`."""
    source: PolicySource = NoPolicy()
    if file is not None:
        source = file
    elif context.database.is_kept:
        source = StoredPolicy(context.database, known)
    policies = Policies(
        source,
        context.client.info.proposers,
        rollouts,
        emit=context.emit,
        flags=flags,
        replays=context.config.replay_sample > 0.0,
        bills_time=bills_time,
    )
    policies.routes = policy_routes(policies)
    return policies
