"""`prolepsis policy`: check, compare and explain policies without a server, and the versions that a server has."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prolepsis.control.policy.check import InvalidPolicy, read_policy
from prolepsis.control.policy.check import check as check_policy
from prolepsis.control.policy.commands import VERSIONS, PolicyPath
from prolepsis.control.policy.explain import ExplainedRequest
from prolepsis.control.policy.explain import diff as diff_policies
from prolepsis.control.policy.model import Policy
from prolepsis.control.rollout.forecast import ASSUMED, Forecast, forecast
from prolepsis.control.rollout.settings import settings_of
from prolepsis.core.errors import ConfigError, UserError
from prolepsis.core.facts import FlagDecision
from prolepsis.core.files import read_text
from prolepsis.core.terminal.admin import Key, Url, ask
from prolepsis.core.terminal.documents import FINDINGS, as_yaml, print_reply
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import (
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
from prolepsis.core.terminal.resource import add_commands
from prolepsis.core.units import duration
from prolepsis.core.validation import Finding
from prolepsis.core.yaml_document import Document, located

if TYPE_CHECKING:
    from prolepsis.server.openai.explain import PolicyExplainBody

app = command_group("Check, compare, explain, apply and roll back policies: which requests may speculate, and how.")

_COLUMNS = {"findings": FINDINGS, "rollouts": ("rule", "stage", "expected")}
_BOUNDS = ("shadow_percentage", "pinned", "guardrails", "rollout", "audit", "learning")
"""Terms that callers cannot change."""


@app.command()
def check(
    file: PolicyPath,
    strict: Annotated[bool, typer.Option("--strict", help="warnings count as errors")] = False,
    requests_per_s: Annotated[
        float,
        typer.Option(min=0.001, help="requests (with assign_by: keys) a second that match a rule, for the forecasts"),
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show every error and warning of a policy; exit status 1 if the policy cannot be used.

    For rollouts, show the time that each stage is expected to take.
    """
    policy: Policy | None = None
    try:
        policy, document = read_policy(file)
        findings = sorted(_findings(policy, document), key=lambda finding: finding.line or 0)
    except InvalidPolicy as error:
        findings = list(error.findings)
    has_errors = any(finding.severity == "error" for finding in findings)
    shown: dict[str, object] = {"file": file, "version": policy and policy.full_version}
    shown |= {"findings": [fault.plain() for fault in findings]} | ({"num_rules": len(policy.rules)} if policy else {})
    if policy and not has_errors and (expected := _forecasts(policy, requests_per_s)):
        shown["rollouts"] = expected
    print_reply(shown, {name: _COLUMNS[name] for name in _COLUMNS if shown.get(name)}, as_json=as_json)
    if "rollouts" in shown and not as_json:
        note(f"expected: time to pass in four of five cases, at {requests_per_s:g} requests/s; assumed: {ASSUMED}")
    if has_errors or (strict and findings):
        raise typer.Exit(FAILED)


@app.command()
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
        rows = [
            [change.kind, change.rule, change.field, as_yaml(change.old), as_yaml(change.new)] for change in changes
        ]
        if rows:
            print_table(f"{before.full_version} -> {after.full_version}", ["", "rule", "field", "old", "new"], rows)
        if not any(change.effective for change in changes):
            stdout().print("no difference takes effect")
    if exit_code and changes:
        raise typer.Exit(FAILED)


@app.command()
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
    from prolepsis.control.controls.flag_file import FlagFile
    from prolepsis.engine.models.files.recommended_sampling import default_sampling
    from prolepsis.server.openai.explain import explained, sample_of

    policy = _usable(file)
    given: dict[str, object] = {
        "tenant": tenant,
        "tier": tier,
        "key": key,
        "roles": role or ["client"],
        "headers": _headers(header or ()),
    }
    optional = {"route": route, "at": at, "prompt_tokens": prompt_tokens, "request_id": request_id}
    given |= {name: value for name, value in optional.items() if value is not None}
    body = _explain_body(request, given)
    try:
        sample = sample_of(body, default_sampling(settings_here().engine))
    except UserError as error:
        raise ConfigError(f"request {request}: {error}", param="request") from None
    decisions: tuple[FlagDecision, ...] = ()
    if flags:
        values = FlagFile(flags).value
        decisions = tuple(values.decide(name, sample.facts) for name in policy.flag_names)
        is_true = frozenset(decision.key for decision in decisions if decision.value)
        sample = replace(sample, facts=replace(sample.facts, flag=is_true))
    explanation = explained(policy, sample)
    if as_json:
        print_json({**asdict(explanation), "flags": [asdict(decision) for decision in decisions]})
        return
    _show_explained(explanation, decisions)
    if policy.flag_names and not decisions:
        note(f"assumed to be false: {', '.join(policy.flag_names)}; --flags FILE evaluates them")


def _explain_body(file: Path, given: Mapping[str, object]) -> "PolicyExplainBody":
    """Return the body of /admin/policy/explain for the request in a file; - reads standard input."""
    from prolepsis.control.web.body_reader import parse_body
    from prolepsis.server.openai.explain import PolicyExplainBody

    text = sys.stdin.buffer.read() if str(file) == "-" else read_text(file, "request").encode()
    return parse_body(b'{"request": %b, %b' % (text, json.dumps(given).encode()[1:]), PolicyExplainBody)


def _headers(given: Sequence[str]) -> dict[str, str]:
    headers = [text.partition(":") for text in given]
    for name, colon, value in headers:
        if not colon or not name.strip():
            raise ConfigError(f"--header is {name + colon + value!r}; allowed: 'NAME: VALUE'", param="header")
    return {name.strip(): value.strip() for name, _, value in headers}


def _show_explained(request: ExplainedRequest, decisions: Sequence[FlagDecision]) -> None:
    """Print which rule matches, why the others do not, what takes effect, and the flags."""
    tried = [[str(i), rule.rule, rule.outcome.replace("_", " "), rule.why] for i, rule in enumerate(request.rules, 1)]
    print_table(f"policy {request.policy_version}", ["", "rule", "", "why"], tried)
    if request.refused is not None:
        refused = f"403, {request.refused['param']}: {request.refused['message']}"
        print_facts([("rule", request.rule), ("refused", refused)])
    else:
        effect = dict(request.in_effect or {})
        sources = effect.pop("sources")
        shown = [[name, as_yaml(value), sources.get(name, "")] for name, value in effect.items()]
        shown += [[name, as_yaml(request.terms[name]), "policy"] for name in _BOUNDS if name in request.terms]
        print_table(f"in effect, by rule {request.rule}", ["", "value", "decided by"], shown)
        if request.terms.get("rollout") is not None:
            note("this rule is rolled out: until the rollout is complete, only a share of the requests gets this")
        if request.facts["prompt_tokens"] is None:
            note("the length of the prompt is unknown; give it with --prompt-tokens")
    if decisions:
        rows = [[flag.key, as_yaml(flag.value), flag.variant or "-", flag.reason, flag.error] for flag in decisions]
        print_table("flags", ["flag", "value", "variant", "reason", "error"], rows)


add_commands(app, VERSIONS, views=False)


@app.command()
def show(
    version: Annotated[int | None, typer.Argument(min=1, metavar="VERSION", help="default: the one in use")] = None,
    *,
    versions: Annotated[bool, typer.Option("--versions", help="list versions, the newest first")] = False,
    url: Url,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Print the text of a version; without VERSION, show which policy the server uses and where it comes from."""
    if versions or version is None:
        path, columns = (VERSIONS.path, VERSIONS.columns) if versions else ("/admin/policy", {})
        print_reply(ask(url, key, "GET", path), columns, as_json=as_json)
        return
    document = ask(url, key, "GET", f"/admin/policy/versions/{version}")
    if as_json:
        print_json(document)
    else:
        print(document["text"], end="")


def _findings(policy: Policy, document: Document) -> list[Finding]:
    from prolepsis.server.known import KNOWN

    return located(check_policy(policy, KNOWN), document)


def _usable(file: Path) -> Policy:
    """Return the policy of a file; its errors become warnings, except errors of shape."""
    policy, document = read_policy(file)
    for finding in _findings(policy, document):
        if finding.severity == "error":
            warn(finding.in_file(str(file)))
    return policy


def _forecasts(policy: Policy, requests_per_s: float) -> list[dict[str, object]]:
    """Return how long each stage of each rollout takes, in seconds; null if no judgement is expected."""
    replay_sample = settings_here().server.replay_sample
    return [
        {"rule": name, "stage": stage.stage, **_expected(stage)}
        for name, terms in policy.named_terms()
        if terms.rollout is not None
        for stage in forecast(settings_of(terms), requests_per_s, replay_sample)
    ]


def _expected(stage: Forecast) -> dict[str, object]:
    wait, longest_s = stage.wait, stage.longest_s
    if wait is None:
        unknown = {"least_s": None, "most_s": None, "longest_s": longest_s}
        return {**unknown, "expected": "no guardrail decides: manual only"}
    longest, expected = (
        f"the longest time of {duration(longest_s)}",
        f"{duration(wait.least_s)} to {duration(wait.most_s)}",
    )
    if wait.least_s > longest_s:
        expected = f"can neither pass nor fail in {longest}; needs {duration(wait.least_s)} or more"
    elif wait.most_s > longest_s:
        expected += f"; ends without a judgement after {longest}"
    times = {"least_s": wait.least_s, "most_s": wait.most_s}
    finite = {name: None if math.isinf(seconds) else round(seconds, 1) for name, seconds in times.items()}
    return {**finite, "longest_s": longest_s, "expected": expected}
