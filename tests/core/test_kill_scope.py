import re

import pytest

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.facts import RequestFacts
from prolepsis.core.kill_scope import check_scope, killed_proposers, request_scopes

FACTS = RequestFacts(route="/v1/completions", tenant="bank")


def test_a_request_belongs_to_what_it_has() -> None:
    everything = {"route:/v1/completions", "tenant:bank", "rule:fast", "traffic_class:a/b/free/short"}
    assert request_scopes(FACTS, "a/b/free/short", "fast") == everything
    assert request_scopes(FACTS, "a/b/free/short/fast", "fast") == {*everything, "traffic_class:a/b/free/short/fast"}
    assert request_scopes(RequestFacts(route="/v1/completions"), "", None) == {"route:/v1/completions"}


def test_proposers_among_scopes() -> None:
    assert killed_proposers(["tenant:suffix", "proposer:suffix"]) == {"suffix"}


@pytest.mark.parametrize(
    "scope",
    [
        "everything",
        "tenant:a:b",
        "rule:fast",
        "proposer:suffix",
        "route:/v1/responses",
        "traffic_class:a/b/free/long/fast",
    ],
)
def test_scopes_that_something_can_belong_to(scope: str) -> None:
    check_scope(scope)


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ("", "everything, or route:NAME, rule:NAME"),
        ("all", "everything"),
        ("tenant:", "tenant:NAME"),
        ("team:x", "everything"),
        ("proposer:sufix", "for a proposer: grammar, suffix"),
        ("route:completions", "the path of an endpoint"),
        ("traffic_class:chat", "ROUTE/TIER/FORM/CONTEXT"),
        ("traffic_class:chat/standard/free/short\n", "everything"),
        ("tenant:bank\n", "everything"),
        ("everything\n", "everything"),
        ("tenant:ba\x00nk", "a name without control characters"),
        ("rule:\x1b[2J", "a name without control characters"),
        ("rule:\x85", "a name without control characters"),
        ("tenant:\udc80", "a name without control characters"),
    ],
)
def test_others_are_refused_with_what_is_allowed(scope: str, allowed: str) -> None:
    with pytest.raises(InvalidParameter, match=rf"scope is {re.escape(repr(scope))}; allowed: .*{allowed}"):
        check_scope(scope)
