"""The scopes of the kill switch: everything, or what a route, rule, tenant, traffic class or proposer does.

A scope is a text such as `tenant:bank`: plans carry the stopped scopes, requests the scopes that they belong to.
"""

import re
from collections.abc import Iterable
from typing import Literal, get_args

from prolepsis.core.config import PROPOSER_NAMES
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.facts import TRAFFIC_CLASS, RequestFacts, wider_classes

EVERYTHING = "everything"
Kind = Literal["route", "rule", "tenant", "traffic_class", "proposer"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SCOPE = rf"^({EVERYTHING}|({'|'.join(KINDS)}):.+)$"
"""What scopes look like."""
_CONTROL = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
"""Characters that no database has to take."""


def kill_scope(kind: Kind, name: str) -> str:
    return f"{kind}:{name}"


def killed_proposers(scopes: Iterable[str]) -> frozenset[str]:
    """Return the names of the proposers among scopes."""
    prefix = kill_scope("proposer", "")
    return frozenset(scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix))


def tenant_scope(scopes: Iterable[str]) -> str:
    """Return the tenant's among the scopes of a request; empty in development mode."""
    return next((scope for scope in scopes if scope.startswith(kill_scope("tenant", ""))), "")


def check_scope(scope: str) -> None:
    """Raise `InvalidParameter` for a scope that nothing can belong to."""
    kind, _, name = scope.partition(":")
    allowed = ""
    if not re.fullmatch(SCOPE, scope):
        allowed = f"{EVERYTHING}, or {', '.join(f'{kind}:NAME' for kind in KINDS)}"
    elif re.search(_CONTROL, name):
        allowed = "a name without control characters"
    elif kind == "proposer" and name not in PROPOSER_NAMES:
        allowed = f"for a proposer: {', '.join(PROPOSER_NAMES)}"
    elif kind == "traffic_class" and not re.fullmatch(TRAFFIC_CLASS, name):
        allowed = (
            "for a traffic class: ROUTE/TIER/FORM/CONTEXT, such as chat-completions/standard/free/short, with or "
            "without /RULE and its parts, as `show drift` names it"
        )
    elif kind == "route" and not name.startswith("/"):
        allowed = "for a route: the path of an endpoint, such as /v1/chat/completions"
    if allowed:
        raise InvalidParameter(f"scope is {scope[:300]!r}; allowed: {allowed}", param="scope")


def request_scopes(facts: RequestFacts, traffic_class: str, rule: str | None) -> frozenset[str]:
    """Return the scopes that a request belongs to; no tenant (development mode) and no rule are none.

    A traffic class without a rule is a scope of all its rules, and one without domain and language of all of them.
    """
    names: list[tuple[Kind, str | None]] = [
        ("route", facts.route),
        ("rule", rule),
        ("tenant", facts.tenant),
        *(("traffic_class", name) for name in wider_classes(traffic_class)),
    ]
    return frozenset(kill_scope(kind, name) for kind, name in names if name)
