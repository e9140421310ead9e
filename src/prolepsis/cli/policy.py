"""`prolepsis plan`: check, compare and explain policies without a server; the versions of one are beside."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prolepsis.cli import policy_versions as plan_versions
from prolepsis.cli.flags import settings_here
from prolepsis.cli.forecasts import RuleForecast, forecasts, show_forecasts
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
from prolepsis.core.yaml_document import located
from prolepsis.policy.check import check as check_policy
from prolepsis.policy.explain import Change, Explanation
from prolepsis.policy.explain import diff as diff_policies
from prolepsis.policy.explain import explain as explain_request
from prolepsis.policy.model import Policy, plain_terms
from prolepsis.policy.reading import InvalidPolicy, read_policy
from prolepsis.policy.runtime import KNOWN

if TYPE_CHECKING:
    from prolepsis.cli.policy_request import Sample

app = command_group("Policies: which requests may speculate, and how. Check, compare, explain, apply, take back.")

PolicyPath = Annotated[Path, typer.Argument(metavar="FILE", help="policy in YAML")]
_BOUNDS = ("shadow_percentage", "pinned", "guardrails", "rollout", "audit")
"""Terms that a caller's wish does not touch."""


@app.command(epilog=EPILOG)
def check(
    file: PolicyPath,
    strict: Annotated[bool, typer.Option("--strict", help="warnings count as errors")] = False,
    requests_per_s: Annotated[
        float, typer.Option(min=0.001, help="requests a second that match a rule, to tell how long its rollout takes")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Say everything that is wrong with a policy or odd about it; status 1 where it cannot be used.

    Rollouts are told with the time that each stage is expected to take.
    """
    try:
        policy, document = read_policy(file)
    except InvalidPolicy as error:
        _show_findings(file, None, error.findings, (), as_json=as_json)
        raise typer.Exit(FAILED) from None
    findings = sorted(located(check_policy(policy, KNOWN), document), key=lambda one: one.line or 0)
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
    exit_code: Annotated[bool, typer.Option("--exit-code", help="status 1 where anything differs")] = False,
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
    request: Annotated[Path, typer.Option(help="body of a request as OpenAI shapes it, in JSON; - reads stdin")],
    route: Annotated[str | None, typer.Option(help="path of the endpoint; default: as the body's shape says")] = None,
    tenant: Annotated[str, typer.Option(help="the caller's")] = "default",
    tier: Annotated[str, typer.Option(help="the caller's")] = "standard",
    key: Annotated[str, typer.Option(help="public part of the caller's API key")] = "",
    role: Annotated[list[str] | None, typer.Option(help="the caller's; may be repeated; default: client")] = None,
    header: Annotated[list[str] | None, typer.Option(help="'NAME: VALUE'; may be repeated")] = None,
    at: Annotated[str | None, typer.Option(help="ISO time with its zone; default: now")] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="length of the prompt; default: not known, unless it is token ids")
    ] = None,
    request_id: Annotated[
        str | None, typer.Option(help="what shares of requests are drawn by; default: not drawn")
    ] = None,
    flags: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="flags that rules ask, in flagd's format; default: all are false"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say for a sample request which rule matches, why the others do not, and what takes effect."""
    from prolepsis.cli import policy_request as plan_request

    policy = _usable(file)
    caller = plan_request.sample_caller(tenant, tier, key, role or ["client"])
    origin = plan_request.Origin(caller, route, plan_request.read_headers(header or ()), _time(at))
    sample = plan_request.read_sample(request, origin, prompt_tokens, request_id)
    said = plan_request.ask_flags(flags, policy.flag_names, sample.facts) if flags else ()
    sample = replace(sample, facts=replace(sample.facts, flag=frozenset(one.key for one in said if one.value)))
    explanation = explain_request(policy, sample.facts, sample.wish)
    if as_json:
        print_json(_document(explanation, sample) | {"flags": [asdict(one) for one in said]})
        return
    _show_explanation(explanation, sample)
    if said:
        rows = [[one.key, _shown(one.value), one.variant or "-", one.reason, one.error] for one in said]
        print_table("flags", ["flag", "value", "variant", "reason", "error"], rows)
    elif policy.flag_names:
        note(f"taken as false: {', '.join(policy.flag_names)}; --flags FILE asks them")


for _command in (plan_versions.apply, plan_versions.history, plan_versions.show, plan_versions.rollback):
    app.command(epilog=EPILOG)(_command)


def _usable(file: Path) -> Policy:
    """Return a policy whose shape is right; what else is wrong with it is a warning here."""
    policy, document = read_policy(file)
    for finding in located(check_policy(policy, KNOWN), document):
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
        stdout().print("nothing that takes effect differs")


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
    return asdict(explanation.in_effect) if explanation.in_effect else None


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
        note("rolled out: until it is on, a share of the requests gets this and the rest is plain")
    if sample.facts.prompt_tokens is None:
        note("the prompt's length is not known here; --prompt-tokens says it")


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
