"""Which roles each route asks for. A route that is not in this table is answered as if it did not exist."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.routing import compile_path

from prolepsis.server.caller import ROLES, Role

Roles = frozenset[Role] | None
"""Any of these roles opens a route; None: open without a key."""

_ANY_ROLE: Roles = frozenset(ROLES)
_CLIENT: Roles = frozenset({"client"})
_WATCHES: Roles = frozenset({"viewer", "operator"})
_READS: Roles = frozenset({"viewer", "operator", "auditor"})
_AUDITS: Roles = frozenset({"auditor"})
"""Entries name tenants and, by setting, hold what they wrote."""
_OPERATES: Roles = frozenset({"operator"})

ROUTES: dict[str, Roles] = {
    "GET /health/live": None,
    "GET /health": _ANY_ROLE,
    "GET /health/ready": _ANY_ROLE,
    "GET /health/deep": _WATCHES,
    "GET /metrics": _WATCHES,
    "GET /version": _ANY_ROLE,
    "GET /openapi.json": _ANY_ROLE,
    "GET /v1/models": _ANY_ROLE,
    "GET /v1/models/{name:path}": _ANY_ROLE,
    "POST /v1/chat/completions": _CLIENT,
    "POST /v1/completions": _CLIENT,
    "POST /v1/responses": _CLIENT,
    "POST /v1/embeddings": _CLIENT,
    "POST /tokenize": _CLIENT,
    "POST /detokenize": _CLIENT,
    "GET /admin/rollouts": _READS,
    "GET /admin/rollouts/{rollout_id}": _READS,
    "POST /admin/rollouts/{rollout_id}/{command}": _OPERATES,
    "GET /admin/policy": _READS,
    "PUT /admin/policy": _OPERATES,
    "GET /admin/policy/versions": _READS,
    "GET /admin/policy/versions/{version}": _READS,
    "POST /admin/policy/rollback": _OPERATES,
    "GET /admin/correctness": _READS,
    "GET /admin/audit": _AUDITS,
    "GET /admin/audit/{entry}": _AUDITS,
    "POST /admin/audit/{entry}/replay": _AUDITS,
    "GET /admin/cost": _READS,
    "GET /admin/kill": _WATCHES,
    "PUT /admin/kill": _OPERATES,
    "GET /admin/breakers": _WATCHES,
    "PUT /admin/breakers": _OPERATES,
    "GET /admin/contract": _READS,
    "GET /admin/drift": _READS,
    "GET /admin/shadow": _READS,
    "POST /admin/drift/reset": _OPERATES,
}
"""Method and path -> roles; `admin` has every role."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the table says of one path."""

    path: str
    """The route's pattern, for logs and counters."""
    methods: Mapping[str, Roles]


class Rules:
    """The table, ready to be asked; patterns are tried in its order."""

    def __init__(self, routes: Mapping[str, Roles]) -> None:
        by_path: dict[str, dict[str, Roles]] = {}
        for route, roles in routes.items():
            method, path = route.split(" ", 1)
            by_path.setdefault(path, {})[method] = roles
        self._patterns: list[tuple[re.Pattern[str], Rule]] = [
            (compile_path(path)[0], Rule(path, methods)) for path, methods in by_path.items()
        ]

    def of(self, path: str) -> Rule | None:
        """Return the rule of a path as given; None: no route is let out under it."""
        return next((rule for pattern, rule in self._patterns if pattern.match(path)), None)
