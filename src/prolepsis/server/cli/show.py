"""`prolepsis show`: views of a running server."""

from prolepsis.control.correctness.commands import CORRECTNESS
from prolepsis.control.cost.commands import COST
from prolepsis.control.health.commands import BREAKERS, DRIFT, ELIGIBILITY
from prolepsis.control.replicas.commands import REPLICAS
from prolepsis.control.rollout.commands import SHADOW
from prolepsis.control.traffic.commands import TRAFFIC
from prolepsis.core.terminal.output import command_group
from prolepsis.core.terminal.resource import add_commands
from prolepsis.ops.incident.commands.incident import timeline
from prolepsis.server.output.commands import DELIVERY

app = add_commands(
    command_group("Show one view of a running server; timeline: of a store too."),
    *(COST, DRIFT, BREAKERS, ELIGIBILITY, CORRECTNESS, DELIVERY, SHADOW, REPLICAS, TRAFFIC),
    acts=False,
)
app.command()(timeline)
