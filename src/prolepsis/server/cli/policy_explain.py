"""`prolepsis policy explain`: a sample request, read as a server reads it, and what a policy makes of it."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import cast, get_args

from prolepsis.control.controls.flag_file import FlagFile
from prolepsis.control.policy.explain import Explanation
from prolepsis.control.policy.model import plain_terms
from prolepsis.control.web.caller import Caller, Role
from prolepsis.core.errors import ConfigError, UserError
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.core.requests import SamplingDefaults
from prolepsis.core.terminal.documents import as_yaml
from prolepsis.core.terminal.output import note, print_facts, print_json, print_table
from prolepsis.server.admission.load_shedding import TIERS
from prolepsis.server.openai.explain import Origin, Sample, effect_of, explained, refusal_of, sample_of

_BOUNDS = ("shadow_percentage", "pinned", "guardrails", "rollout", "audit")
"""Terms that callers cannot change."""


def sample_caller(tenant: str, tier: str, key: str, roles: Sequence[str]) -> Caller:
    """Return the caller that flags describe; raises `ConfigError`."""
    for flag, given, allowed in (("--tier", [tier], tuple(TIERS)), ("--role", roles, get_args(Role))):
        wrong = next((name for name in given if name not in allowed), None)
        if wrong is not None:
            raise ConfigError(f"{flag} is {wrong!r}; allowed: {', '.join(allowed)}", param=flag.strip("-"))
    return Caller(key, tenant, frozenset(cast(Sequence[Role], roles)), tier)


def read_headers(given: Sequence[str]) -> dict[str, str]:
    """Return headers written as 'NAME: VALUE', by name in lower case; raises `ConfigError`."""
    headers = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ConfigError(f"--header is {text!r}; allowed: 'NAME: VALUE'", param="header")
        headers[name.strip().lower()] = value.strip()
    return headers


def read_time(text: str | None) -> datetime:
    """Return the time of a flag, or the present; raises `ConfigError`."""
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


def read_sample(
    file: Path, origin: Origin, defaults: SamplingDefaults, prompt_tokens: int | None, request_id: str | None
) -> Sample:
    """Return the request in `file` (- reads standard input); raises `ConfigError` for an invalid one."""
    raw = _bytes(file)
    try:
        return sample_of(raw, origin, defaults, prompt_tokens=prompt_tokens, request_id=request_id)
    except UserError as error:
        raise ConfigError(f"request {file}: {error}", param="request") from None


def evaluate_flags(file: Path, names: Sequence[str], facts: RequestFacts) -> tuple[FlagDecision, ...]:
    """Return the values of a file's flags for the request, as a server evaluates them; raises `ConfigError`."""
    flags = FlagFile(file).value
    return tuple(flags.decide(name, facts) for name in names)


def _bytes(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise ConfigError(f"request {file} cannot be read: {error.strerror}", param="request") from None


def print_explanation(
    explanation: Explanation, sample: Sample, decisions: Sequence[FlagDecision], *, as_json: bool
) -> None:
    """Print which rule matches, why the others do not, what takes effect, and the flags."""
    if as_json:
        print_json(asdict(explained(explanation, sample)) | {"flags": [asdict(one) for one in decisions]})
        return
    _show_effect(explanation, sample)
    if decisions:
        rows = [[one.key, as_yaml(one.value), one.variant or "-", one.reason, one.error] for one in decisions]
        print_table("flags", ["flag", "value", "variant", "reason", "error"], rows)


def _show_effect(explanation: Explanation, sample: Sample) -> None:
    rows = [
        [str(i), tried.rule, tried.outcome.replace("_", " "), tried.why] for i, tried in enumerate(explanation.tried, 1)
    ]
    print_table(f"policy {explanation.policy_version}", ["", "rule", "", "why"], rows)
    refusal = refusal_of(explanation, sample)
    if refusal is not None:
        print_facts([("rule", explanation.rule), ("refused", f"403, {refusal['param']}: {refusal['message']}")])
        return
    effect = effect_of(explanation) or {}
    sources = effect.pop("sources")
    shown = [[name, as_yaml(value), sources.get(name, "")] for name, value in effect.items()]
    terms = plain_terms(explanation.terms)
    shown += [[name, as_yaml(terms[name]), "policy"] for name in _BOUNDS if name in terms]
    print_table(f"in effect, by rule {explanation.rule}", ["", "value", "decided by"], shown)
    if explanation.terms.rollout is not None:
        note("this rule is rolled out: until the rollout is complete, only a share of the requests gets this")
    if sample.facts.prompt_tokens is None:
        note("the length of the prompt is unknown; give it with --prompt-tokens")
