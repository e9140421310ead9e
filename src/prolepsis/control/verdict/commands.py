"""`prolepsis status`: the verdict on each rule of the policy in use."""

from prolepsis.core.terminal.resource import Resource, show_command

VERDICTS = Resource(
    title="Verdict by rule",
    path="/admin/verdicts",
    part="verdicts",
    help="Say for each rule whether its speculation should be kept, or what is missing to know.",
    command="status",
    columns={"verdicts": ("rule", "verdict > rests_on", "since")},
    empty="No rule has a verdict yet.",
)
status = show_command(VERDICTS)
