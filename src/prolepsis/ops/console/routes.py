"""Puts the console together: its pages, what all of them show, its static files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp

from prolepsis.control.controls import pages as controls
from prolepsis.control.controls.kill_switch import KillStatus
from prolepsis.control.correctness.commands import CORRECTNESS
from prolepsis.control.cost.commands import COST
from prolepsis.control.health.commands import DRIFT
from prolepsis.control.learning import shown as learning
from prolepsis.control.policy import pages as policy
from prolepsis.control.replicas.commands import REPLICAS
from prolepsis.control.rollout import pages as rollout
from prolepsis.control.rollout.commands import ROLLOUTS
from prolepsis.control.store.store import Store
from prolepsis.control.traffic.commands import TRAFFIC
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.page import FeaturePages, Page, PageRoute, Visit, fixed, listed
from prolepsis.control.web.routes import PUBLIC, Route
from prolepsis.core.audit_event import Emit
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.kill_scope import kill_scope
from prolepsis.ops.console import audit, requests
from prolepsis.ops.console.acts import declare_acts
from prolepsis.ops.console.api import operations
from prolepsis.ops.console.assets import Assets
from prolepsis.ops.console.changes import recent_changes
from prolepsis.ops.console.dashboards import DASHBOARDS
from prolepsis.ops.console.overview import Load, overview_pages
from prolepsis.ops.console.pages import HOME, Pages
from prolepsis.ops.console.playground import playground_pages
from prolepsis.ops.console.proposers import proposer_pages
from prolepsis.ops.console.render import environment
from prolepsis.ops.console.runbook import RUNBOOKS, by_alert, runbooks
from prolepsis.ops.console.sessions import KeyRing, Sessions
from prolepsis.ops.console.sign_in import declare_sign_in


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleParts:
    client: EngineClient
    load: Load
    store: Store
    keys: KeyRing
    check_local: Callable[[Headers], None]  # refuses visitors from other machines where no key is asked for
    observe: Callable[[Exception], None]  # sees every refusal, for counters
    emit: Emit
    grafana_url: str
    models: Sequence[str]  # names of the models that are served
    document: Callable[[], Mapping[str, object]]  # makes the OpenAPI document
    app: Callable[[], ASGIApp]  # the application that the console is a part of
    failing: Callable[[], str] = str  # why the server is not ready by what requests get; empty if it is


def console_routes(admin: Sequence[Route], parts: ConsoleParts) -> Sequence[Route]:
    """Return the console's routes over the admin routes of the features."""
    assets, templates, of_features = Assets(), environment(), _listed(parts)
    shown = [page for feature in of_features for page in feature.routes]
    navigation = [(page.path, page.name) for page in shown if page.in_navigation]
    templates.globals |= {"asset": assets.url, "name_of": parts.keys.name_of}
    pages = Pages(
        templates,
        {(method, route.path): route for route in admin for method in route.methods or ()},
        parts.keys,
        Sessions(),
        check_local=parts.check_local,
        observe=parts.observe,
        frame=lambda visit: frame(visit, parts, navigation),
    )
    declare_sign_in(pages, parts.emit)
    declare_acts(pages, {name: act for feature in of_features for name, act in feature.acts.items()})
    for page in shown:
        pages.declare(page)

    @pages.routes.get("/console/static/{name}", roles=PUBLIC, summary="Static files", documented=False)
    async def asset(name: str) -> Response:
        reply = assets.response(name)
        if reply is None:
            raise RequestRefused(f"There is no file {name[:64]!r}.", code="unknown_url", status=404)
        return reply

    return pages.routes.all


def _listed(parts: ConsoleParts) -> Sequence[FeaturePages]:
    """Return the pages in the order of the navigation: those of one feature, and here those of several."""
    manual, grafana = runbooks(), parts.grafana_url
    alerts = by_alert(manual)
    return (
        playground_pages(parts.app, parts.models, asks_for_key=parts.keys.required),
        overview_pages(parts.client, parts.load, parts.store, alerts, failing=parts.failing),
        listed("/console/rollouts", "Rollouts", ROLLOUTS),
        rollout.PAGES,
        policy.PAGES,
        proposer_pages(parts.client),
        listed("/console/learning", "Learning", *learning.RESOURCES),
        listed("/console/quality", "Drift and correctness", DRIFT, TRAFFIC, CORRECTNESS, values=_with_changes),
        listed("/console/cost", "Cost", COST),
        requests.PAGES,
        audit.PAGES,
        *controls.PAGES,
        listed("/console/replicas", "Replicas", REPLICAS),
        fixed(
            "/console/dashboards",
            "Dashboards",
            "dashboards.html",
            lambda: {"dashboards": DASHBOARDS, "grafana": "" if grafana == "none" else grafana.rstrip("/")},
        ),
        fixed(RUNBOOKS, "Runbooks", "runbooks.html", lambda: {"runbooks": manual.values()}),
        FeaturePages((PageRoute(f"{RUNBOOKS}/{{name}}", "One runbook", _runbook),)),
        fixed("/console/api", "API", "api.html", lambda: {"operations": list(operations(parts.document()))}),
    )


async def _runbook(visit: Visit) -> Page:
    runbook = runbooks().get(visit.names["name"])
    if runbook is None:
        message = f"There is no runbook {visit.names['name'][:64]!r}; allowed: {', '.join(runbooks())}."
        raise RequestRefused(message, code="unknown_runbook", param="name", status=404)
    return Page("runbook.html", runbook.title, {"runbook": runbook}, live=False)


async def _with_changes(visit: Visit) -> tuple[str, Mapping[str, object]]:
    return "resources.html", {"changes": await recent_changes(visit)}


async def frame(visit: Visit, parts: ConsoleParts, navigation: Sequence[tuple[str, str]]) -> Mapping[str, object]:
    """Return what every page shows around its content."""
    client = parts.client
    path = visit.url.partition("?")[0]
    known = max((link for link, _ in navigation if path == link or path.startswith(f"{link}/")), key=len, default=HOME)
    return {
        "info": client.info,
        "engine_state": _engine_state(client, parts.failing()),
        "kill": await visit.section(KillStatus, "/admin/kill"),
        "may_read_entries": visit.may("GET", "/admin/audit/{entry}"),
        "may_kill": visit.may("PUT", "/admin/kill"),
        "scopes": [
            *(kill_scope("proposer", name) for name in client.info.proposers),
            *sorted({kill_scope("traffic_class", counts.traffic_class) for counts in client.proposer_counts()}),
        ],
        "keys_required": parts.keys.required,
        "csrf": visit.session.csrf,
        "notices": [] if visit.is_update else visit.session.take_notices(),
        "nav": navigation,
        "here": known,
    }


def _engine_state(client: EngineClient, failing: str) -> tuple[str, str]:
    health = client.health()
    if not health.alive:
        return "bad", "Engine is dead"
    if failing:
        return "bad", f"Requests fail: {failing}"
    return ("ok", "Serving") if health.ready else ("warn", health.detail or "Not ready")
