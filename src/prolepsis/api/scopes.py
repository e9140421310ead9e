"""The scopes of the kill switch that something on a server has."""

from prolepsis.api.auth.keys import Keys
from prolepsis.api.openai.facts import KNOWN
from prolepsis.controls.known_scopes import KnownScopes
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.engine.client import EngineClient
from prolepsis.policy.runtime import Policies

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
