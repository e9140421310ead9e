"""A request's facts as the context that flags are evaluated in."""

from dataclasses import fields
from datetime import datetime
from math import isinf

from openfeature.evaluation_context import EvaluationContext

from prolepsis.control.facts import RequestFacts

_NAMES = tuple(field.name for field in fields(RequestFacts) if field.name not in ("targeting_key", "flag"))


def evaluation_context(facts: RequestFacts) -> EvaluationContext:
    """Return the facts by their names; what is not known, or not limited, is not there.

    `targetingKey` is what shares of requests are drawn by (`control.shares`), `time` an ISO text, `roles` a list.
    """
    shown = {name: _plain(getattr(facts, name)) for name in _NAMES}
    return EvaluationContext(facts.targeting_key, {name: value for name, value in shown.items() if value is not None})


def _plain(fact: object) -> bool | int | float | str | list[str] | dict[str, str] | None:
    if isinstance(fact, datetime):
        return fact.isoformat()
    if isinstance(fact, frozenset):
        return sorted(fact)
    if isinstance(fact, float) and isinf(fact):
        return None
    if isinstance(fact, bool | int | float | str | None):
        return fact
    assert isinstance(fact, dict), "facts are plain values"
    return dict(fact)
