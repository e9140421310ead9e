"""The rules that a forecast recommends: speculation for the traffic classes that it makes faster."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

import yaml

from prolepsis.core.facts import MEDIUM, SHORT, RequestFacts, traffic_class_of
from prolepsis.lab.rehearsal.forecast import PAYS, ClassGain

_FORMS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "free": {"": {"tools": False, "structured_output": "none"}},
    "structured": {"-tools": {"tools": True}, "-structured": {"structured_output": "any"}},
}
"""Conditions of each form, by the end of the rule's name."""
_LENGTHS = {"short": {"max": SHORT}, "medium": {"min": SHORT + 1, "max": MEDIUM}, "long": {"min": MEDIUM + 1}}
HEADING = ["class", "requests", "of these faster", "times faster", "recommended mode"]


def mode_for(gains: Sequence[ClassGain]) -> str:
    """Return the mode for a class: on if it gains in most of the forecasts."""
    return "on" if PAYS * median(gain.speedup for gain in gains) >= 1.0 else "off"


def class_row(name: str, gains: Sequence[ClassGain]) -> list[str]:
    """Return the row of a class under `HEADING`, with the least and the most over the forecasts."""
    shares, speedups = sorted(gain.share for gain in gains), sorted(gain.speedup for gain in gains)
    faster = f"{100 * shares[0]:.0f} – {100 * shares[-1]:.0f} %"
    return [name, str(gains[0].num_requests), faster, f"{speedups[0]:.2f} – {speedups[-1]:.2f}", mode_for(gains)]


def policy_text(requests: Iterable[RequestFacts], classes: Mapping[str, Sequence[ClassGain]]) -> str:
    """Return a policy with rules for the traffic classes of such requests."""
    facts_of = {traffic_class_of(facts): facts for facts in requests}
    rules = [rule for name, gains in classes.items() for rule in _rules(name, facts_of[name], mode_for(gains))]
    return yaml.safe_dump({"version": "rehearsed", "default": {"mode": "off"}, "rules": rules}, sort_keys=False)


def _rules(traffic_class: str, facts: RequestFacts, mode: str) -> Iterator[Mapping[str, object]]:
    _, _, form, context = traffic_class.split("/")
    known = {name: value for name, value in (("route", facts.route), ("tier", facts.tier)) if value}
    for end, conditions in _FORMS[form].items():
        match = {**known, **conditions, "prompt_tokens": dict(_LENGTHS[context])}
        yield {"name": f"{traffic_class.replace('/', '-')[:50]}{end}", "match": match, "mode": mode}
