"""When a run is due: what has happened to a rule since it last learnt, against the terms of its block."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.core.config import DAY_S
from prolepsis.core.learning import DatasetManifest, Trigger

_ORDER: tuple[Trigger, ...] = ("target", "drift", "new_tokens", "age")  # the strongest first


@dataclass(frozen=True, slots=True)
class RuleNews:
    """A rule since its last data set of the target that is served; without one, since its first example."""

    since: float  # Unix time of the data set, or of the first example
    new_tokens: int
    drifted: bool = False  # something was held against its drafts, and has not recovered
    is_new_target: bool = False  # its data sets are all of other targets


def last_of(manifests: Iterable[DatasetManifest], rule: str, target: str) -> tuple[DatasetManifest | None, bool]:
    """Return a rule's newest data set of a target, and whether it has any of others only."""
    of_rule = [manifest for manifest in manifests if manifest.rule == rule]
    own = [manifest for manifest in of_rule if manifest.target.startswith(target)]
    return max(own, key=lambda manifest: manifest.made_at, default=None), bool(of_rule) and not own


def due(
    blocks: Mapping[str, LearningTerms], news: Mapping[str, RuleNews], now: datetime
) -> tuple[str, Trigger, str] | None:
    """Return the rule whose run is due, the trigger and why in words; None if no run is.

    Of several the one with the stronger trigger comes first, then the one that has waited longest.
    """
    reasons = {rule: _reason(terms, news[rule], now) for rule, terms in blocks.items() if rule in news}
    found = [(_ORDER.index(reason[0]), news[rule].since, rule, *reason) for rule, reason in reasons.items() if reason]
    return min(found)[2:] if found else None


def _reason(terms: LearningTerms, news: RuleNews, now: datetime) -> tuple[Trigger, str] | None:
    when, days = terms.when, (now.timestamp() - news.since) / DAY_S
    if terms.run == "by_hand" or not news.new_tokens or not (when.time is None or when.time.holds(now)):
        return None
    if news.is_new_target:
        return "target", "the target has other weights than the one that it learnt for"
    if when.drift and news.drifted and days >= 1.0:  # a run that did not help is not repeated at once
        return "drift", "its drafts fit its requests less than they did"
    if when.new_tokens is not None and news.new_tokens >= when.new_tokens:
        return "new_tokens", f"{news.new_tokens:,} new tokens"
    if when.days is not None and days >= when.days:
        return "age", f"{days:.1f} days since the last data set, or the first example"
    return None
