"""`prolepsis show delivery`: how many accepted draft tokens of a running server reached clients."""

from prolepsis.core.terminal.resource import Resource

DELIVERY = Resource(
    title="Delivery",
    path="/admin/health",
    part="delivery",
    help="Show how many accepted draft tokens were delivered, by proposer and traffic class, and the output policies.",
    command="delivery",
    columns={
        "policies": ("name", "on_fault", "timeout_ms", "max_held"),
        "delivered": ("proposer", "traffic_class", "accepted=num_verified", "delivered=num_delivered", "lost"),
    },
)
