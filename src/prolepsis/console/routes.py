"""Puts the console together: its pages, what all of them show, its static files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response

from prolepsis.console.acts import declare_acts
from prolepsis.console.admin import AdminRoutes
from prolepsis.console.assets import Assets
from prolepsis.console.audit import declare_audit
from prolepsis.console.controls import declare_flags, declare_kill
from prolepsis.console.dashboards import declare_dashboards
from prolepsis.console.overview import Load, declare_overview
from prolepsis.console.pages import HOME, Pages, Visit
from prolepsis.console.policy import declare_policy
from prolepsis.console.proposers import declare_proposers
from prolepsis.console.quality import declare_quality
from prolepsis.console.render import environment
from prolepsis.console.replicas import declare_replicas
from prolepsis.console.requests import declare_requests
from prolepsis.console.rollouts import declare_rollouts
from prolepsis.console.runbook import by_alert, runbooks
from prolepsis.console.runbook_pages import declare_runbooks
from prolepsis.console.sessions import KeyRing, Sessions
from prolepsis.console.sign_in import declare_sign_in
from prolepsis.console.traffic import TrafficReply
from prolepsis.controls.kill_switch import KillStatus
from prolepsis.core.audit_event import Emit
from prolepsis.core.kill_scope import kill_scope
from prolepsis.engine.client import EngineClient
from prolepsis.store.store import Store
from prolepsis.web.errors import RequestRefused
from prolepsis.web.routes import PUBLIC, Route

NAVIGATION = (
    (HOME, "Overview"),
    ("/console/rollouts", "Rollouts"),
    ("/console/policy", "Policy"),
    ("/console/proposers", "Proposers"),
    ("/console/quality", "Drift and correctness"),
    ("/console/requests", "Requests"),
    ("/console/audit", "Audit"),
    ("/console/flags", "Flags"),
    ("/console/kill", "Kill switch"),
    ("/console/replicas", "Replicas"),
    ("/console/dashboards", "Dashboards"),
    ("/console/runbooks", "Runbooks"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleParts:
    """The parts that the console is made of."""

    client: EngineClient
    load: Load
    store: Store
    keys: KeyRing
    check_local: Callable[[Headers], None]
    """Refuses visitors from other machines where no key is asked for."""
    observe: Callable[[Exception], None]
    """Sees every refusal, for counters."""
    emit: Emit
    grafana_url: str
    failing: Callable[[], str] = str
    """Why the server is not ready by what requests get; empty if it is."""


def console_routes(admin: Sequence[Route], parts: ConsoleParts) -> Sequence[Route]:
    """Return the console's routes over the admin routes of the features."""
    assets, templates = Assets(), environment()
    templates.globals |= {"asset": assets.url, "name_of": parts.keys.name_of}
    pages = Pages(
        templates,
        AdminRoutes(admin),
        parts.keys,
        Sessions(),
        check_local=parts.check_local,
        observe=parts.observe,
        frame=lambda visit: frame(visit, parts),
    )
    manual = runbooks()
    declare_sign_in(pages, parts.emit)
    declare_acts(pages)
    declare_overview(pages, parts.client, parts.load, parts.store, by_alert(manual), failing=parts.failing)
    declare_rollouts(pages)
    declare_policy(pages)
    declare_proposers(pages, parts.client)
    declare_quality(pages, by_alert(manual))
    declare_requests(pages)
    declare_audit(pages)
    declare_flags(pages)
    declare_kill(pages)
    declare_replicas(pages)
    declare_dashboards(pages, parts.grafana_url)
    declare_runbooks(pages, manual)
    _declare_assets(pages, assets)
    return pages.routes.all


async def frame(visit: Visit, parts: ConsoleParts) -> Mapping[str, object]:
    """Return what every page shows around its content."""
    client = parts.client
    path = visit.url.partition("?")[0]
    known = max((one for one, _ in NAVIGATION if path == one or path.startswith(f"{one}/")), key=len, default=HOME)
    return {
        "info": client.info,
        "engine_state": _engine_state(client, parts.failing()),
        "kill": await visit.section(KillStatus, "/admin/kill"),
        "may_read_entries": visit.may("GET", "/admin/audit/{entry}"),
        "may_kill": visit.may("PUT", "/admin/kill"),
        "scopes": await _scopes(visit, client),
        "keys_required": parts.keys.required,
        "csrf": visit.session.csrf,
        "notices": [] if visit.is_update else visit.session.told(),
        "nav": NAVIGATION,
        "here": known,
    }


def _engine_state(client: EngineClient, failing: str) -> tuple[str, str]:
    health = client.health()
    if not health.alive:
        return "bad", "Engine is dead"
    if failing:
        return "bad", f"Requests fail: {failing}"
    return ("ok", "Serving") if health.ready else ("warn", health.detail or "Not ready")


async def _scopes(visit: Visit, client: EngineClient) -> list[str]:
    """Return scopes of the kill switch to choose from."""
    traffic = await visit.section(TrafficReply, "/admin/traffic")
    classes = [one.traffic_class for one in traffic.value.classes] if traffic.value else []
    return [
        *(kill_scope("proposer", name) for name in client.info.proposers),
        *(kill_scope("traffic_class", name) for name in classes),
    ]


def _declare_assets(pages: Pages, assets: Assets) -> None:
    @pages.routes.get("/console/static/{name}", roles=PUBLIC, summary="Static files", documented=False)
    async def asset(name: str) -> Response:
        found = assets.response(name)
        if found is None:
            raise RequestRefused(f"There is no file {name[:64]!r}.", code="unknown_url", status=404)
        return found
