"""`prolepsis policy`: check, compare and explain policies without a server, and the versions that a server has."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prolepsis.cli.admin import HERE, POLICY_HISTORY, Key, Url, add_verbs, ask
from prolepsis.cli.documents import print_reply
from prolepsis.cli.flags import settings_here
from prolepsis.cli.output import (
    EPILOG,
    FAILED,
    AsJson,
    command_group,
    note,
    print_facts,
    print_json,
    print_table,
    stdout,
    warn,
)
from prolepsis.core.errors import ConfigError
from prolepsis.core.validation import Finding
from prolepsis.core.yaml_document import Document, located, read_text
from prolepsis.policy.check import check as check_policy
from prolepsis.policy.explain import Change, Explanation
from prolepsis.policy.explain import diff as diff_policies
from prolepsis.policy.explain import explain as explain_request
from prolepsis.policy.model import Policy, plain_terms
from prolepsis.policy.reading import InvalidPolicy, read_policy

if TYPE_CHECKING:
    from prolepsis.cli.policy_request import Sample
from prolepsis.rollout.forecast import ASSUMED, Forecast, forecast
from prolepsis.rollout.settings import settings_of

app = command_group("Check, compare, explain, apply and roll back policies: which requests may speculate, and how.")

PolicyPath = Annotated[Path, typer.Argument(metavar="FILE", help="policy in YAML")]
_BOUNDS = ("shadow_percentage", "pinned", "guardrails", "rollout", "audit")
"""Terms that callers cannot change."""


@dataclass(frozen=True, slots=True)
class RuleForecast:
    """The forecast of one stage of a rule's rollout."""

    rule: str
    stage: Forecast

    def plain(self) -> dict[str, object]:
        """Return it as JSON shows it, in seconds; null if no verdict is expected."""
        wait = self.stage.wait
        least, most = (None, None) if wait is None else (_finite(wait.least_s), _finite(wait.most_s))
        return {"rule": self.rule, "stage": self.stage.stage, "least_s": least, "most_s": most}


@app.command(epilog=EPILOG)
def check(
    file: PolicyPath,
    strict: Annotated[bool, typer.Option("--strict", help="warnings count as errors")] = False,
    requests_per_s: Annotated[
        float,
        typer.Option(min=0.001, help="requests a second that match a rule, for the forecasts"),
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show every error and warning of a policy; exit status 1 if the policy cannot be used.

    For rollouts, show the time that each stage is expected to take.
    """
    try:
        policy, document = read_policy(file)
    except InvalidPolicy as error:
        _show_findings(file, None, error.findings, (), as_json=as_json)
        raise typer.Exit(FAILED) from None
    findings = sorted(_findings(policy, document), key=lambda one: one.line or 0)
    is_right = all(one.severity != "error" for one in findings)
    expected = forecasts(policy, requests_per_s, settings_here().server.replay_sample) if is_right else []
    _show_findings(file, policy, findings, expected, as_json=as_json)
    if expected and not as_json:
        show_forecasts(expected, requests_per_s)
    if any(strict or one.severity == "error" for one in findings):
        raise typer.Exit(FAILED)


@app.command(epilog=EPILOG)
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="policy in YAML")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="policy in YAML")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="exit with status 1 if anything differs")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which rules were added, removed, moved or changed, field by field, with presets filled in."""
    before, after = _usable(old), _usable(new)
    changes = diff_policies(before, after)
    if as_json:
        versions = {"old": before.full_version, "new": after.full_version}
        print_json({**versions, "changes": [asdict(change) for change in changes]})
    else:
        _show_changes(before, after, changes)
    if exit_code and changes:
        raise typer.Exit(FAILED)


@app.command(epilog=EPILOG)
def explain(  # noqa: PLR0917  # typer names its options after parameters
    file: PolicyPath,
    request: Annotated[Path, typer.Option(help="JSON file with the body of an OpenAI request; - reads standard input")],
    route: Annotated[str | None, typer.Option(help="path of the endpoint; default: known from the body")] = None,
    tenant: Annotated[str, typer.Option(help="tenant of the caller")] = "default",
    tier: Annotated[str, typer.Option(help="tier of the caller")] = "standard",
    key: Annotated[str, typer.Option(help="public part of the caller's API key")] = "",
    role: Annotated[list[str] | None, typer.Option(help="role of the caller; may be repeated; default: client")] = None,
    header: Annotated[list[str] | None, typer.Option(help="'NAME: VALUE'; may be repeated")] = None,
    at: Annotated[str | None, typer.Option(help="ISO time with its zone; default: now")] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="length of the prompt; default: unknown, except for token ids")
    ] = None,
    request_id: Annotated[
        str | None, typer.Option(help="decides whether a rule for a share of requests applies; default: it does not")
    ] = None,
    flags: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="feature flags of the rules, in flagd's format; default: all are false"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show for a sample request which rule matches, why the others do not, and what takes effect."""
    from prolepsis.cli import policy_request
    from prolepsis.models.files.store import default_sampling

    policy = _usable(file)
    caller = policy_request.sample_caller(tenant, tier, key, role or ["client"])
    origin = policy_request.Origin(caller, route, policy_request.read_headers(header or ()), _time(at))
    sample = policy_request.read_sample(
        request, origin, default_sampling(settings_here().engine), prompt_tokens, request_id
    )
    decisions = policy_request.evaluate_flags(flags, policy.flag_names, sample.facts) if flags else ()
    sample = replace(sample, facts=replace(sample.facts, flag=frozenset(one.key for one in decisions if one.value)))
    explanation = explain_request(policy, sample.facts, sample.requested)
    if as_json:
        print_json(_document(explanation, sample) | {"flags": [asdict(one) for one in decisions]})
        return
    _show_explanation(explanation, sample)
    if decisions:
        rows = [[one.key, _shown(one.value), one.variant or "-", one.reason, one.error] for one in decisions]
        print_table("flags", ["flag", "value", "variant", "reason", "error"], rows)
    elif policy.flag_names:
        note(f"assumed to be false: {', '.join(policy.flag_names)}; --flags FILE evaluates them")


Expect = Annotated[
    int | None,
    typer.Option(min=0, metavar="VERSION", help="fail if another version is in use; default: the one in use now"),
]
Reason = Annotated[str, typer.Option("--reason", help="recorded with the version and in the audit log")]


@app.command(epilog=EPILOG)
def apply(  # noqa: PLR0917  # typer names its options after parameters
    file: PolicyPath,
    expect: Expect = None,
    reason: Reason = "",
    url: Url = HERE,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Store a policy as a new version; all servers on the store use it within a second.

    The server checks it first. A policy with an error is refused, and nothing changes.
    """
    text = read_text(file, "policy")
    body = {"text": text, "expect": _expected(url, key, expect), "reason": reason}
    _show_changed(ask(url, key, "PUT", "/admin/policy", body), as_json=as_json)


@app.command(epilog=EPILOG)
def rollback(  # noqa: PLR0917  # typer names its options after parameters
    to: Annotated[int, typer.Argument(min=1, metavar="VERSION", help="as `policy history` shows it")],
    expect: Expect = None,
    reason: Reason = "",
    url: Url = HERE,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Use the text of an earlier version again, as a new version."""
    body = {"to": to, "expect": _expected(url, key, expect), "reason": reason}
    _show_changed(ask(url, key, "POST", "/admin/policy/rollback", body), as_json=as_json)


add_verbs(app, [POLICY_HISTORY])


@app.command(epilog=EPILOG)
def show(
    version: Annotated[int | None, typer.Argument(min=1, metavar="VERSION", help="default: the one in use")] = None,
    url: Url = HERE,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Print the text of a version; without VERSION, show which policy the server uses and where it comes from."""
    if version is None:
        print_reply(ask(url, key, "GET", "/admin/policy"), as_json=as_json)
        return
    document = ask(url, key, "GET", f"/admin/policy/versions/{version}")
    if as_json:
        print_json(document)
    else:
        print(document["text"], end="")


def _expected(url: str, key: str | None, expect: int | None) -> int:
    """Return the version to replace: the expected one, or the one in use now."""
    if expect is not None:
        return expect
    return int(ask(url, key, "GET", "/admin/policy")["version"] or 0)


def _show_changed(changed: dict[str, Any], *, as_json: bool) -> None:
    print_reply(changed, as_json=as_json)
    if not as_json:
        note("all servers on the store use it within a second")


def _findings(policy: Policy, document: Document) -> list[Finding]:
    from prolepsis.api.openai.facts import KNOWN

    return located(check_policy(policy, KNOWN), document)


def _usable(file: Path) -> Policy:
    """Return the policy of a file; its errors other than those of shape become warnings."""
    policy, document = read_policy(file)
    for finding in _findings(policy, document):
        if finding.severity == "error":
            warn(finding.in_file(str(file)))
    return policy


def _time(text: str | None) -> datetime:
    if text is None:
        return datetime.now().astimezone()
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        message = f"--at is {text!r}; allowed: an ISO time with its zone, such as 2026-11-21T22:30+01:00"
        raise ConfigError(message, param="at")
    return time


def _show_findings(
    file: Path,
    policy: Policy | None,
    findings: Sequence[Finding],
    expected: Sequence[RuleForecast],
    *,
    as_json: bool,
) -> None:
    version = policy.full_version if policy else None
    if as_json:
        document = {"file": file, "version": version, "findings": [one.plain() for one in findings]}
        print_json(document | ({"rollouts": [one.plain() for one in expected]} if expected else {}))
        return
    if findings:
        rows = [[one.severity, str(one.line or ""), one.where, one.message] for one in findings]
        print_table(str(file), ["", "line", "where", "what"], rows)
    if policy is not None:
        print_facts([("version", version), ("rules", len(policy.rules)), ("findings", len(findings))])


def _show_changes(old: Policy, new: Policy, changes: list[Change]) -> None:
    rows = [[change.kind, change.rule, change.field, _shown(change.old), _shown(change.new)] for change in changes]
    if rows:
        print_table(f"{old.full_version} -> {new.full_version}", ["", "rule", "field", "old", "new"], rows)
    if not any(change.effective for change in changes):
        stdout().print("no difference takes effect")


def _document(explanation: Explanation, sample: "Sample") -> dict[str, object]:
    return {
        "policy_version": explanation.policy_version,
        "rules": [asdict(tried) for tried in explanation.tried],
        "rule": explanation.rule,
        "terms": plain_terms(explanation.terms),
        "refused": _refusal(explanation, sample),
        "in_effect": None if _refusal(explanation, sample) else _effect(explanation),
        "facts": sample.plain_facts(),
    }


def _refusal(explanation: Explanation, sample: "Sample") -> dict[str, str] | None:
    """Return why a server would refuse the request: for a missing role, or because the policy does not let it pass."""
    if sample.refused is not None:
        return {"param": sample.refused.param or "", "message": str(sample.refused)}
    return asdict(explanation.conflict) if explanation.conflict else None


def _effect(explanation: Explanation) -> dict[str, Any] | None:
    decision = explanation.decision
    if decision is None:
        return None
    choice = decision.choice
    return {
        "mode": "on" if choice.mode == "auto" else choice.mode,
        "forced": choice.mode == "on",
        "proposers": choice.proposers,
        "num_speculative_tokens": choice.num_speculative_tokens,
        "emit": decision.emit,
        "sources": dict(decision.sources),
    }


def _show_explanation(explanation: Explanation, sample: "Sample") -> None:
    rows = [
        [str(i), tried.rule, tried.outcome.replace("_", " "), tried.why] for i, tried in enumerate(explanation.tried, 1)
    ]
    print_table(f"policy {explanation.policy_version}", ["", "rule", "", "why"], rows)
    refusal = _refusal(explanation, sample)
    if refusal is not None:
        print_facts([("rule", explanation.rule), ("refused", f"403, {refusal['param']}: {refusal['message']}")])
        return
    effect = _effect(explanation) or {}
    sources = effect.pop("sources")
    shown = [[name, _shown(value), sources.get(name, "")] for name, value in effect.items()]
    terms = plain_terms(explanation.terms)
    shown += [[name, _shown(terms[name]), "policy"] for name in _BOUNDS if name in terms]
    print_table(f"in effect, by rule {explanation.rule}", ["", "value", "decided by"], shown)
    if explanation.terms.rollout is not None:
        note("this rule is rolled out: until the rollout is complete, only a share of the requests gets this")
    if sample.facts.prompt_tokens is None:
        note("the length of the prompt is unknown; give it with --prompt-tokens")


def _shown(value: object) -> str:
    """Show a value as YAML on one line would."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_shown(inner)}" for name, inner in value.items() if inner is not None) + "}"
    return str(value)


def forecasts(policy: Policy, requests_per_s: float, replay_sample: float) -> list[RuleForecast]:
    """Return how long each stage of each rollout takes; the policy has no errors."""
    return [
        RuleForecast(name, stage)
        for name, terms in policy.named_terms()
        if terms.rollout is not None
        for stage in forecast(settings_of(terms), requests_per_s, replay_sample)
    ]


def show_forecasts(expected: Sequence[RuleForecast], requests_per_s: float) -> None:
    """Print the forecasts as a table, with their assumptions."""
    rows = [[one.rule, one.stage.stage, _text(one.stage)] for one in expected]
    print_table(f"expected time to pass, at {requests_per_s:g} requests/s", ["rule", "stage", "four of five"], rows)
    note(f"assumed: {ASSUMED}")


def _text(stage: Forecast) -> str:
    if stage.wait is None:
        return "no guardrail decides: manual only"
    least, most = stage.wait.least_s, stage.wait.most_s
    return f"{_duration(least)} to {_duration(most)}"


def _duration(seconds: float) -> str:
    if math.isinf(seconds):
        return "never"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s"


def _finite(seconds: float) -> float | None:
    return None if math.isinf(seconds) else round(seconds, 1)
