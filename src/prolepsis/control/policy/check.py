"""Checks a policy file or text, and reports every problem at once with line, value and what is allowed."""

import difflib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prolepsis.control.policy.conditions import Names, Range
from prolepsis.control.policy.learnt import HOLDOUT
from prolepsis.control.policy.model import DEFAULT_RULE, Match, PartTerms, Policy, Rule, Terms, control_terms
from prolepsis.control.policy.rollout_terms import METRICS, AgainstTerms, GuardrailTerms, RolloutTerms
from prolepsis.core.config import HEAD_PROPOSERS, NAMED_HEADS
from prolepsis.core.extras import LANGUAGE
from prolepsis.core.files import read_text
from prolepsis.core.requests import SAMPLING_TABLE
from prolepsis.core.validation import Finding
from prolepsis.core.yaml_document import Document, InvalidFile, located, read_shape

Keys = tuple[int | str, ...]
_error, _warning = partial(Finding, "error"), partial(Finding, "warning")
MAX_FLAGS = 8  # feature flags that a policy may ask of every request
_POSSIBLE: dict[str, tuple[float, float]] = {
    "priority": (-(2**31), 2**31 - 1),
    "n": (1, 128),
    "prompt_tokens": (1, float("inf")),
    "max_tokens": (0, float("inf")),
    **{row.name: (round(row.least), row.most if row.most <= 10 else float("inf")) for row in SAMPLING_TABLE},
}
"""What requests may ask for, as admission checks it."""


@dataclass(frozen=True, slots=True)
class Known:
    """Names that exist where the policy is to be used; None: not known, so none is refused."""

    proposers: Collection[str] | None = None
    loaded: Collection[str] | None = None  # proposers that the engine has loaded
    tier: Collection[str] | None = None
    roles: Collection[str] | None = None
    route: Collection[str] | None = None
    model: Collection[str] | None = None
    flags: bool | None = None  # feature flags are asked there
    replays: bool = True  # requests are decoded again, so there is something to say of correctness
    bills_time: bool = True  # device time is billed there, so drafts can save money
    detects_language: bool = True  # what guesses languages is installed there


NOTHING_KNOWN = Known()


def check(policy: Policy, known: Known = NOTHING_KNOWN) -> list[Finding]:
    """Return what is found, in the order of the file; a policy without errors may be used."""
    findings, names = [*_names(policy.rules)], policy.flag_names
    if len(names) > MAX_FLAGS:
        message = f"name {len(names)} flags ({', '.join(names)}); allowed: up to {MAX_FLAGS}, since each is asked"
        findings.append(_error(("rules",), message))
    if policy.traffic_classes.detect_language and not known.detects_language:
        message = f"is true, and nothing here detects languages: {LANGUAGE.install}"
        findings.append(_warning(("traffic_classes", "detect_language"), message))
    for i, rule in enumerate(policy.rules):
        path: Keys = ("rules", i)
        findings += _match((*path, "match"), rule.match, known)
        findings += _terms(path, rule.terms, rule.model_fields_set, known)
        findings += _learning((*path, "learning"), rule.terms, rule.match, policy.never_learn, known)
        hiding = next((earlier for earlier in policy.rules[:i] if earlier.match.covers(rule.match)), None)
        if hiding is not None:
            message = f"of rule {rule.name!r} is never reached: rule {hiding.name!r} above matches all its requests"
            findings.append(_error((*path, "match"), message))
    findings += _terms(("default",), policy.default_terms, policy.default.model_fields_set, known)
    findings += _learning(("default", "learning"), policy.default_terms, Match(), policy.never_learn, known)
    return findings


def _names(rules: Sequence[Rule]) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for i, rule in enumerate(rules):
        path = ("rules", i, "name")
        if rule.name == DEFAULT_RULE:
            yield _error(path, f"is {rule.name!r}; allowed: any other, this one is the default's")
        elif rule.name in seen:
            yield _error(path, f"is {rule.name!r}, as is rules[{seen[rule.name]}]; allowed: names that differ")
        seen.setdefault(rule.name, i)


def _match(path: Keys, match: Match, known: Known) -> Iterator[Finding]:
    if match.flag is not None and known.flags is False:
        yield _warning(
            (*path, "flag"),
            f"names {match.flag}, and without --flags or --flag-provider only `prolepsis flags set` gives it a value",
        )
    for name, condition in match.conditions.items():
        here = (*path, name)
        if isinstance(condition, Range):
            yield from _range(here, condition, *_POSSIBLE[name])
        names = getattr(known, name, None)
        if isinstance(condition, Names) and names is not None:
            yield from _unknown(here, condition.root, names)


def _range(path: Keys, bounds: Range, lowest: float, highest: float) -> Iterator[Finding]:
    if bounds.empty:
        yield _error(path, f"has min {bounds.min:g} above max {bounds.max:g}; no value lies between")
    elif (bounds.min is not None and bounds.min > highest) or (bounds.max is not None and bounds.max < lowest):
        possible = f"{lowest:g} or more" if highest == float("inf") else f"{lowest:g} to {highest:g}"
        yield _error(path, f"is {bounds}, which no request can have; possible: {possible}")


def _unknown(path: Keys, given: Sequence[str], known: Collection[str]) -> Iterator[Finding]:
    for name in given:
        if not any(text.startswith(name[:-1]) if name.endswith("*") else text == name for text in known):
            near = difflib.get_close_matches(name, list(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
            yield _error(path, f"names {name!r}, which is unknown; {hint}")


def _terms(path: Keys, terms: Terms, given: Collection[str], known: Known) -> Iterator[Finding]:
    yield from _proposers((*path, "proposers"), terms, known)
    for name, part in (("call", terms.inside.call), ("text", terms.inside.text)) if terms.inside is not None else ():
        yield from _inside((*path, "inside", name), part, terms, known)
    against = terms.rollout.against if terms.rollout is not None else None
    yield from _guardrails((*path, "guardrails"), terms.guardrails, control_drafts=against is not None)
    if not known.replays and any(guardrail.metric == "correctness" for guardrail in terms.guardrails):
        message = "has one on correctness, and no requests are replayed: it never decides; replay_sample says how many"
        yield _warning((*path, "guardrails"), message)
    if terms.guardrails and terms.rollout is None:
        yield _error((*path, "guardrails"), "is given without a rollout, which is what guardrails watch")
    if terms.rollout is not None:
        yield from _rollout((*path, "rollout"), terms.rollout, terms)
    if against is not None:
        yield from _against((*path, "rollout", "against"), against, terms, known)
    yield from _eligibility(path, terms, known)
    drafts_in_shadow = terms.mode == "shadow" or terms.rollout is not None or terms.eligible_while is not None
    if "shadow_percentage" in given and not drafts_in_shadow:
        where = "in mode shadow, in rollouts and with eligible_while"
        message = f"is {terms.shadow_percentage:g} with mode {terms.mode}; it counts {where}"
        yield _warning((*path, "shadow_percentage"), message)


def _eligibility(path: Keys, terms: Terms, known: Known) -> Iterator[Finding]:
    for name in ("eligible_while", "start"):
        if getattr(terms, name) is not None and terms.mode != "on":
            yield _warning((*path, name), f"is given with mode {terms.mode}; it counts with mode on")
    required = terms.eligible_while
    if required is not None and required.saving_per_million_tokens is not None and not known.bills_time:
        message = "is not asked for: no device time is billed here, as there is no price, or a reserved one"
        yield _warning((*path, "eligible_while", "saving_per_million_tokens"), message)


def _inside(path: Keys, part: PartTerms, terms: Terms, known: Known) -> Iterator[Finding]:
    """Yield what is wrong with the terms of a part of the answer, which may only narrow those of the rule."""
    yield from _proposers((*path, "proposers"), part, known)
    if terms.proposers is not None and (others := sorted({*(part.proposers or ())}.difference(terms.proposers))):
        allowed = f"those of the rule ({', '.join(terms.proposers) or 'none'})"
        yield _error((*path, "proposers"), f"names {', '.join(others)}; allowed: {allowed}")
    most = terms.num_speculative_tokens
    if most is not None and (part.num_speculative_tokens or 0) > most:
        message = f"is {part.num_speculative_tokens}; allowed: up to that of the rule ({most})"
        yield _error((*path, "num_speculative_tokens"), message)
    if terms.mode == "off":
        yield _warning(path, "is given with mode off; it counts where the rule speculates")


def _proposers(path: Keys, terms: Terms | PartTerms, known: Known) -> Iterator[Finding]:
    if terms.proposers is None:
        return
    if known.proposers is not None:
        yield from _unknown(path, terms.proposers, known.proposers)
    if not terms.proposers and terms.mode != "off":
        yield _error(path, f"is empty with mode {terms.mode}; allowed: one or more, or null for all that are loaded")
    elif known.loaded is not None and terms.mode != "off" and not set(terms.proposers) & set(known.loaded):
        message = f"is {', '.join(terms.proposers)}, of which none is loaded here; loaded: {', '.join(known.loaded)}"
        yield _warning(path, message)
    yield from (_warning(path, f"names {name!r} twice") for name in _twice(terms.proposers))


def _guardrails(path: Keys, guardrails: Sequence[GuardrailTerms], *, control_drafts: bool) -> Iterator[Finding]:
    yield from (
        _error(path, f"names {name!r} twice; allowed: names that differ")
        for name in _twice([g.name for g in guardrails])
    )
    for i, guardrail in enumerate(guardrails):
        meaning = METRICS[guardrail.metric]
        what = f"{guardrail.metric} ({meaning.text})"
        has_control = meaning.has_control or (control_drafts and meaning.compares_drafts)
        compared = "margin" if guardrail.gain is None else "gain"
        if guardrail.limit is None and not has_control:
            message = f"is given for {what}, which plain requests do not have; allowed: limit"
            yield _error((*path, i, compared), message)
        elif guardrail.gain is not None and not meaning.is_amount:
            amounts = ", ".join(name for name, info in METRICS.items() if info.is_amount)
            yield _error((*path, i, "gain"), f"is given for {what}; allowed: on {amounts}")
        for name, given in (("margin", guardrail.margin), ("limit", guardrail.limit)):
            least = meaning.lowest if name == "limit" else 0.0
            if given is not None and not least < given < meaning.highest:
                allowed = f"above {least:g}" + (f", below {meaning.highest:g}" if meaning.is_rate else "")
                yield _error((*path, i, name), f"is {given:g} for {what}; allowed: {allowed}")


def _rollout(path: Keys, rollout: RolloutTerms, terms: Terms) -> Iterator[Finding]:
    kept = "plain" if rollout.against is None else "with the control"
    yield from _stages((*path, "stages"), rollout.stages, rollout.holdout, kept)
    if rollout.min_stage_s >= rollout.max_stage_s:
        message = f"is {rollout.min_stage_s:g}, and max_stage_s {rollout.max_stage_s:g}; allowed: less than that"
        yield _error((*path, "min_stage_s"), message)
    if terms.pinned:
        yield _error(path, "is given for a rule that is pinned; allowed: one of them, since a rollout changes the mode")
    if terms.mode != "on":
        hint = "; shadow_percentage says how many requests draft in shadow" if terms.mode == "shadow" else ""
        yield _error(path, f"is given with mode {terms.mode}; allowed: with mode on only{hint}")
    if rollout.gate == "automatic" and all(guardrail.dry_run for guardrail in terms.guardrails):
        message = "is automatic, and no guardrail is decisive; allowed: manual, or a guardrail without dry_run"
        yield _error((*path, "gate"), message)


def _stages(path: Keys, shares: Sequence[float], holdout: float, kept: str) -> Iterator[Finding]:
    shown, most = ", ".join(f"{share:g}" for share in shares), 100.0 - holdout
    if list(shares) != sorted(set(shares)):
        yield _error(path, f"is {shown}; allowed: percentages that rise from stage to stage")
    elif shares[0] == 0:
        yield _error(path, f"is {shown}; allowed: percentages above 0")
    elif shares[-1] > most:
        yield _error(path, f"is {shown}; allowed: up to {most:g}, since holdout keeps {holdout:g} percent {kept}")


def _learning(path: Keys, terms: Terms, match: Match, never: Collection[str], known: Known) -> Iterator[Finding]:
    learning = terms.learning
    if learning is None:
        return
    agreed, here = learning.tenants, (*path, "tenants")
    if barred := sorted({*never} & {*agreed}):
        yield _error(here, f"names {', '.join(barred)}; allowed: tenants that never_learn does not name")
    matched = match.tenant.root if match.tenant is not None else ("",)
    if learning.serves == "tenant" and (len(agreed) > 1 or agreed != matched):
        shown = ", ".join(map(repr, agreed))
        message = f"is {shown} with serves: tenant; allowed: one tenant, which match.tenant names alone, or serves: all"
        yield _error(here, message)
    if learning.serves == "all" and learning.min_tenants > (most := len({*agreed})):
        message = f"is {learning.min_tenants}; allowed: up to {most}, the number of tenants"
        yield _error((*path, "min_tenants"), message)
    yield from _stages((*path, "stages"), learning.stages, HOLDOUT, "with the champion")
    if terms.pinned or terms.mode != "on":
        given = "for a rule that is pinned" if terms.pinned else f"with mode {terms.mode}"
        yield _error(path, f"is given {given}; allowed: with mode on, for a rule that is not pinned")
    if named := {*(terms.proposers or ())}.intersection(NAMED_HEADS):
        shown = ", ".join(sorted(named))
        yield _error(path, f"is given for a rule that names {shown}; allowed: to leave both to trials")
    if terms.rollout is not None:
        yield _warning(path, "is given with a rollout, whose place a trial takes; one begins only while that is on")
    if known.loaded is not None and set(HEAD_PROPOSERS).isdisjoint(known.loaded):
        yield _warning(path, "is given, and no draft head is loaded here, which is what learns")


def _against(path: Keys, against: AgainstTerms, terms: Terms, known: Known) -> Iterator[Finding]:
    control = control_terms(terms)
    if all(getattr(terms, name) == value for name, value in against.changes.items()):
        yield _error(path, "has the terms of the rule; allowed: terms that differ, which the rule's are compared with")
    if "proposers" in against.changes:
        yield from _proposers((*path, "proposers"), control, known)


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


class InvalidPolicy(InvalidFile):
    what = "policy"
    command = "policy check"


def read_policy(file: Path) -> tuple[Policy, Document]:
    """Return the policy of a file and where its parts stand.

    Raises `InvalidPolicy` with everything that is wrong with its shape, `ConfigError` for an unreadable file.
    """
    return parse_policy(read_text(file, "policy"), str(file))


MOST_VALUES = 10_000
"""Of a policy: a thousand rules. Clients may send one to be explained, and reading it shares the interpreter."""


def parse_policy(text: str, name: str) -> tuple[Policy, Document]:
    """Return the policy that `text` holds; `name` is what errors call it. Raises `InvalidPolicy`."""
    return read_shape(text, Policy, InvalidPolicy, name, most=MOST_VALUES)


def usable_policy(text: str, name: str, known: Known) -> Policy:
    """Return the policy that `text` holds; `name` is what errors call it.

    Raises `InvalidPolicy` with all that is wrong with its shape, else with all errors that `check` finds.
    """
    policy, document = parse_policy(text, name)
    errors = [finding for finding in located(check(policy, known), document) if finding.severity == "error"]
    if errors:
        raise InvalidPolicy(name, errors)
    return policy
