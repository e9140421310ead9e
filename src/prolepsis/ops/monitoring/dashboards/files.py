"""The dashboards as files, with what all of them have: variables and annotations."""

from collections.abc import Mapping

from prolepsis.ops.monitoring.dashboards.debug import DEBUG
from prolepsis.ops.monitoring.dashboards.executive import EXECUTIVE
from prolepsis.ops.monitoring.dashboards.on_call import ON_CALL
from prolepsis.ops.monitoring.dashboards.queries import S
from prolepsis.ops.monitoring.grafana import Annotation, Variable, dashboard_json

VARIABLES = (
    Variable("model", "label_values(prolepsis_build_info, model)"),
    Variable("instance", 'label_values(prolepsis_build_info{model=~"$model"}, instance)'),
    Variable("route", "label_values(prolepsis_requests_total, route)"),
    Variable("tier", "label_values(prolepsis_requests_total, tier)"),
)
ANNOTATIONS = (
    Annotation("rollout", f"changes(prolepsis_rollout_stage{{{S}}}[1m]) > 0", "rule {{rule}}", "blue"),
    Annotation(
        "policy, head or software",
        f"count by (policy, draft_head, version) (prolepsis_build_info{{{S}}})"
        f" unless count by (policy, draft_head, version) (prolepsis_build_info{{{S}}} offset 1m)",
        "policy {{policy}}, head {{draft_head}}, version {{version}}",
        "purple",
    ),
    Annotation("kill switch", f"max by (source) (prolepsis_speculation_killed{{{S}}}) == 1", "{{source}}", "red"),
)
DASHBOARDS = (EXECUTIVE, ON_CALL, DEBUG)


def dashboard_files() -> Mapping[str, str]:
    """Return the file of each dashboard by its path."""
    return {
        f"dashboards/{one.uid.removeprefix('prolepsis-')}.json": dashboard_json(one, VARIABLES, ANNOTATIONS, DASHBOARDS)
        for one in DASHBOARDS
    }
