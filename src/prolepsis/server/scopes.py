"""The scopes of the kill switch that something on a server has."""

from prolepsis.control.controls.known_scopes import KnownScopes
from prolepsis.control.policy.runtime import Policies
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.server.front.keys import Keys
from prolepsis.server.preparing.facts import KNOWN

_ROUTES = tuple(KNOWN.route or ())
_NAMED_ROUTES = tuple(traffic_class_of(RequestFacts(route=route)).partition("/")[0] for route in _ROUTES)
"""Routes as traffic classes name them."""


def known_scopes(client: EngineClient, keys: Keys, policies: Policies) -> KnownScopes:
    """Return what has a scope now, by the policy in use, the keys and the engine."""
    return KnownScopes(
        names={
            "route": lambda: _ROUTES,
            "rule": lambda: policies.rule_names,
            "tenant": lambda: keys.tenants,
            "traffic_class": lambda: {f"{named}/{tier}" for named in _NAMED_ROUTES for tier in keys.tiers},
            "proposer": lambda: client.info.proposers,
        }
    )
