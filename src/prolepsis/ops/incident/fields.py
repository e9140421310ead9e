"""Fields of our own replies, records and log lines, by what they hold.

Words that we chose, numbers and ids that we made are kept as they are. Names of tenants, keys and people get numbers.
Everything else may be a text of clients or operators, and goes through redaction.
"""

import re
from collections.abc import Mapping
from typing import get_args

from prolepsis.control.cost.meter import Dimension

NAMES = {"tenant": "tenant", "key_id": "key", "actor": "person", "by": "person", "author": "person"}
"""Fields that hold a name, and what it is called instead."""
OF_TENANTS = re.compile(r"metrics_tenants|tenants|(?:\w+_)?by_tenant")
"""Fields that hold names of tenants, as a list or as keys."""
LEFT_OUT = frozenset(
    {
        *("http_request_id", "answer_id", "trace_id", "hash"),
        *("salt", "digest_salt", "prompt_digest", "output_digests", "details_digest"),
    }
)
"""Names that clients chose, and fields with which a guess at a text can be checked."""
OF_OPERATORS = frozenset(
    {"before", "after", "configuration", "content", "definition", "match", "targeting", "text", "variants"}
)
"""What people wrote: there a number may be a password or a card."""

_WORDS = frozenset(
    {
        *("action", "arm", "currency", "event", "exactness", "killed_by", "kind", "level", "metric", "mode", "outcome"),
        *("phase", "proposer", "route", "sources", "state", "status", "term", "terminal", "tier", "traffic_class"),
        "unit",
    }
)
"""Fields of our words: names of states, kinds and routes."""
_WORD = re.compile(r"[A-Za-z/][A-Za-z0-9_./{}-]{0,127}")
_DIMENSIONS = frozenset({"all", *get_args(Dimension)})
_GROUPED = "by"
_NUMBER = re.compile(r"-?\d{1,19}(?:\.\d{1,19})?(?:e[+-]?\d+)?(?:[KMGT]i?B|ms|s|%)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)?")
OUR_ID = re.compile(r"[a-z]+-[0-9a-f]{32}(?:-\d+)?")
_TEXTS = frozenset({"detail", "error", "fault", "finding", "message", "note", "reason"})
"""Fields of sentences: a number alone may be one that a person wrote."""


def is_our_word(field: str, text: str) -> bool:
    """Return whether a field holds words that we chose, and the text is one."""
    if field == _GROUPED:
        return text in _DIMENSIONS
    return field in _WORDS and _WORD.fullmatch(text) is not None


def was_made(field: str, text: str) -> bool:
    """Return whether the text of a field is a number, a time or an id that we made."""
    made = _TIME.fullmatch(text) or OUR_ID.fullmatch(text)
    return made is not None or (field not in _TEXTS and _NUMBER.fullmatch(text) is not None)


def kind_of_names(field: str, siblings: Mapping[object, object]) -> str:
    """Return what the names in a field are called: tenant, key, person; empty if it holds none.

    A group's `value` is a tenant if the group is `by` tenants.
    """
    if OF_TENANTS.fullmatch(field) or (field == "value" and siblings.get(_GROUPED) == "tenant"):
        return "tenant"
    return NAMES.get(field, "")
