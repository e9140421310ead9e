"""What is found in policies whose shape is right."""

import pytest

from prolepsis.control.policy.check import MAX_FLAGS, InvalidPolicy, Known, check
from tests.control.policy.policies import policy

KNOWN = Known(
    proposers=("suffix", "draft_head"),
    loaded=("suffix",),
    tier=("premium", "batch"),
    roles=("client", "operator"),
    route=("/v1/completions",),
    model=("tiny",),
    bills_time=False,
)


def test_a_guardrail_on_an_unmeasured_metric_is_reported() -> None:
    rolled_out = policy("default: {mode: on, rollout: {}, guardrails: [{name: g, metric: correctness, limit: 0.9}]}")
    [one] = check(rolled_out, Known(replays=False))
    assert (one.severity, one.where) == ("warning", "default.guardrails")
    assert "no requests are replayed" in one.message
    assert check(rolled_out) == []


def test_a_guess_at_languages_that_nothing_makes_is_reported() -> None:
    guessed = policy("traffic_classes: {detect_language: true}")
    [one] = check(guessed, Known(detects_language=False))
    assert (one.severity, one.where) == ("warning", "traffic_classes.detect_language")
    assert "pip install 'prolepsis[language]'" in one.message
    assert check(guessed) == []


def found(rule: str) -> list[str]:
    findings = check(policy(f"rules: [{{name: a, match: {{}}, {rule}}}]"), KNOWN)
    return [f"{one.severity} {one.where.removeprefix('rules[0].')} {one.message}" for one in findings]


@pytest.mark.parametrize(
    ("rule", "beginning"),
    [
        ("proposers: [sufix]", "error proposers names 'sufix', which is unknown; did you mean 'suffix'?"),
        ("proposers: [], mode: on", "error proposers is empty with mode on"),
        ("proposers: [draft_head], mode: on", "warning proposers is draft_head, of which none is loaded here"),
        ("proposers: [suffix, suffix], mode: on", "warning proposers names 'suffix' twice"),
        (
            "mode: on, proposers: [suffix], inside: {call: {proposers: [draft_head, suffix]}}",
            "error inside.call.proposers names draft_head; allowed: those of the rule (suffix)",
        ),
        (
            "mode: on, num_speculative_tokens: 4, inside: {text: {num_speculative_tokens: 8}}",
            "error inside.text.num_speculative_tokens is 8; allowed: up to that of the rule (4)",
        ),
        (
            "mode: on, inside: {call: {proposers: [sufix, suffix]}}",
            "error inside.call.proposers names 'sufix', which is",
        ),
        ("mode: on, inside: {text: {proposers: []}}", "error inside.text.proposers is empty with mode on"),
        ("shadow_percentage: 5", "warning shadow_percentage is 5 with mode off"),
        ("start: {}", "warning start is given with mode off"),
        (
            "mode: shadow, eligible_while: {acceptance_rate: {min: 0.5}}",
            "warning eligible_while is given with mode shadow",
        ),
        (
            "mode: on, eligible_while: {saving_per_million_tokens: {min: 1}}",
            "warning eligible_while.saving_per_million_tokens is not asked for: no device time is billed here",
        ),
        ("mode: on, rollout: {stages: [5, 1, 50]}", "error rollout.stages is 5, 1, 50; allowed"),
        ("mode: on, rollout: {stages: [5, 5, 50]}", "error rollout.stages is 5, 5, 50; allowed"),
        ("mode: on, rollout: {stages: [0, 50]}", "error rollout.stages is 0, 50; allowed"),
        ("mode: on, rollout: {stages: [1, 100]}", "error rollout.stages is 1, 100; allowed: up to 95"),
        ("mode: on, rollout: {min_stage_s: 9, max_stage_s: 9}", "error rollout.min_stage_s is 9, and max_stage_s 9"),
        ("mode: on, pinned: true, rollout: {}", "error rollout is given for a rule that is pinned"),
        ("mode: shadow, rollout: {}", "error rollout is given with mode shadow"),
        ("mode: on, rollout: {gate: automatic}", "error rollout.gate is automatic, and"),
        (
            "mode: on, guardrails: [{name: g, metric: error_rate, margin: 0.01}]",
            "error guardrails is given without a rollout",
        ),
        (
            "mode: on, rollout: {}, guardrails: [{name: g, metric: acceptance_rate, limit: 70}]",
            "error guardrails[0].limit is 70 for acceptance_rate (accepted / drafted tokens); allowed: above 0, below",
        ),
        (
            "mode: on, rollout: {}, guardrails: [{name: g, metric: acceptance_length, limit: 1.0}]",
            "error guardrails[0].limit is 1 for acceptance_length (output tokens / passes of the target); allowed: ",
        ),
        (
            "mode: on, rollout: {}, guardrails: [{name: g, metric: acceptance_rate, margin: 0.1}]",
            "error guardrails[0].margin is given for acceptance_rate (accepted / drafted tokens), which plain requests",
        ),
        (
            "mode: on, rollout: {}, guardrails: [{name: g, metric: acceptance_length, gain: 0.1}]",
            "error guardrails[0].gain is given for acceptance_length (output tokens / passes of the target), which",
        ),
        (
            "mode: on, rollout: {}, guardrails: [{name: g, metric: error_rate, gain: 0.1}]",
            "error guardrails[0].gain is given for error_rate (requests that failed / requests); allowed: on",
        ),
        (
            "mode: on, rollout: {}, guardrails: [{name: g, metric: error_rate, limit: 0.1}, "
            "{name: g, metric: latency_p95_ms, margin: 0.1}]",
            "error guardrails names 'g' twice",
        ),
    ],
)
def test_terms(rule: str, beginning: str) -> None:
    [one] = found(rule)
    assert one.startswith(beginning)


@pytest.mark.parametrize(
    "rule",
    [
        "mode: on, proposers: [draft_head, suffix]",
        "proposers: []",
        "mode: shadow, shadow_percentage: 5",
        "mode: on, rollout: {}",
        "mode: on, rollout: {stages: 80, holdout: 20}",
        "mode: on, shadow_percentage: 10, rollout: {gate: automatic}, "
        "guardrails: [{name: g, metric: acceptance_rate, limit: 0.3}, {name: l, metric: latency_p95_ms, limit: 3000}]",
        "mode: off, pinned: true",
        "mode: on, inside: {}",
        "mode: on, inside: {text: {mode: off}, call: {proposers: suffix, num_speculative_tokens: 8}}",
        "mode: on, rollout: {}, guardrails: [{name: g, metric: cost_per_token, gain: 0.1}]",
    ],
)
def test_terms_that_are_right(rule: str) -> None:
    assert found(rule) == []


@pytest.mark.parametrize(
    ("match", "message"),
    [
        ("tier: premum", "names 'premum', which is unknown; did you mean 'premium'?"),
        ("roles: [client, root]", "names 'root', which is unknown; known: client, operator"),
        ("route: /v2/*", "names '/v2/*', which is unknown"),
        ("model: tiny-2", "names 'tiny-2', which is unknown; did you mean 'tiny'?"),
        ("prompt_tokens: {min: 9, max: 1}", "has min 9 above max 1; no value lies between"),
        ("temperature: {min: 3}", "is 3 or more, which no request can have; possible: 0 to 2"),
        ("max_tokens: -1", "is -1, which no request can have; possible: 0 or more"),
    ],
)
def test_conditions_that_never_hold(match: str, message: str) -> None:
    [one] = check(policy(f"rules: [{{name: a, match: {{{match}}}}}]"), KNOWN)
    assert (one.severity, one.where) == ("error", f"rules[0].match.{match.partition(':')[0]}")
    assert one.message.startswith(message)


def test_names_that_are_not_known_are_not_judged() -> None:
    assert check(policy("rules: [{name: a, match: {tier: any, model: [x], tenant: t}, proposers: [p]}]")) == []


def test_names_of_rules_differ_and_none_is_the_defaults() -> None:
    rules = "rules: [{name: a, match: {n: 1}}, {name: default, match: {n: 2}}, {name: a, match: {n: 3}}]"
    assert [(one.where, one.severity) for one in check(policy(rules))] == [
        ("rules[1].name", "error"),
        ("rules[2].name", "error"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "unreachable"),
    [
        ("", "tenant: a", True),
        ("tenant: a*", "tenant: [ab, ac], tools: true", True),
        ("prompt_tokens: {max: 100}", "prompt_tokens: {min: 5, max: 50}", True),
        ("roles: [client, operator]", "roles: client", True),
        ("tenant: a", "", False),
        ("tenant: a, tools: true", "tenant: a", False),
        ("tenant: a", "tenant: a*", False),
        ("prompt_tokens: {max: 100}", "prompt_tokens: {min: 5}", False),
        ("tools: true", "tools: false", False),
        ("time: {hours: 08:00-18:00}", "time: {hours: 09:00-10:00, time_zone: Europe/Berlin}", False),
        ("time: {hours: 07:00-18:00}", "time: {hours: 09:00-10:00, time_zone: Europe/Berlin}", True),
        ("time: [{days: mon}, {days: tue}]", "time: {days: mon-tue}", True),
        ("time: [{hours: 08:00-10:00}, {hours: 12:00-14:00}]", "time: {hours: 08:00-14:00}", False),
        ("time: {hours: 08:00-08:05}", "time: {hours: 08:00-08:07}", False),
        ("headers: {x-a: {present: true}}", "headers: {x-a: {prefix: b}, x-c: d}", True),
        ("headers: {x-a: {prefix: b}}", "headers: {x-a: {present: true}}", False),
        ("headers: {x-a: {present: false}}", "headers: {x-a: {present: false}}", True),
        ("headers: {x-a: b}", "headers: {x-c: d}", False),
        ("structured_output: any", "structured_output: [json_schema, regex]", True),
        ("structured_output: json_schema", "structured_output: any", False),
        ("tool_choice: [auto, required]", "tool_choice: auto", True),
        ("language: de", "language: [de-AT, de-CH]", True),
        ("language: de-AT", "language: de", False),
        ("flag: [a, b]", "flag: a", True),
        ("flag: a", "flag: [a, b]", False),
        ("prompt_tokens: {min: 5}", "prompt_tokens: {min: 5}", True),
    ],
)
def test_rules_that_an_earlier_one_hides(first: str, second: str, unreachable: bool) -> None:
    text = f"rules: [{{name: a, match: {{{first}}}}}, {{name: x, match: {{n: 7}}}}, {{name: b, match: {{{second}}}}}]"
    findings = check(policy(text))
    hidden = [one for one in findings if one.where == "rules[2].match"]
    assert bool(hidden) == unreachable
    assert all("rule 'a' above" in one.message for one in hidden)


def test_flags_that_rules_ask() -> None:
    asked = "rules: [{name: a, match: {flag: new-drafts}}]"
    assert policy(asked).flag_names == ("new-drafts",)
    assert check(policy(asked)) == check(policy(asked), Known(flags=True)) == []
    [one] = check(policy(asked), Known(flags=False))
    assert (one.severity, one.where) == ("warning", "rules[0].match.flag")
    assert one.message.startswith("names new-drafts, and without --flags or --flag-provider only `prolepsis flags set`")
    names = ", ".join(f"f{i}" for i in range(MAX_FLAGS))
    assert check(policy(f"rules: [{{name: a, match: {{flag: [{names}]}}}}]")) == []
    two = f"rules: [{{name: a, match: {{flag: [{names}]}}}}, {{name: b, match: {{flag: [f0, more]}}}}]"
    [one] = check(policy(two))
    assert one.severity == "error"
    assert "allowed: up to 8" in one.message


LEARNS = "mode: on, learning: {{tenants: {0}}}"
ALL = "serves: all, min_tenants: 2"
ACME, BOTH = "tenant: acme", "[acme, other]"


@pytest.mark.parametrize(
    ("match", "terms", "where", "message"),
    [
        (ACME, LEARNS.format(BOTH), "tenants", "is 'acme', 'other' with serves: tenant; allowed: one tenant, which"),
        ("tenant: [acme, other]", LEARNS.format(BOTH), "tenants", "is 'acme', 'other' with serves: tenant"),
        (
            "tenant: acme*",
            LEARNS.format("acme"),
            "tenants",
            "is 'acme' with serves: tenant; allowed: one tenant, which",
        ),
        ("tools: true", LEARNS.format("acme"), "tenants", "is 'acme' with serves: tenant"),
        (ACME, LEARNS.format("''"), "tenants", "is '' with serves: tenant"),
        ("", LEARNS.format(f"{BOTH}, serves: all"), "min_tenants", "is 5; allowed: up to 2, the number of tenants"),
        (
            "",
            LEARNS.format(f"[acme, other, hospital], {ALL}"),
            "tenants",
            "names hospital; allowed: tenants that never",
        ),
        (ACME, LEARNS.format("acme, stages: [50, 10]"), "stages", "is 50, 10; allowed: percentages that rise"),
        (ACME, LEARNS.format("acme, stages: 99"), "stages", "is 99; allowed: up to 95, since holdout keeps 5 percent"),
        (ACME, "mode: shadow, learning: {tenants: acme}", "", "is given with mode shadow; allowed: with mode on"),
        (
            ACME,
            f"{LEARNS.format('acme')}, pinned: true",
            "",
            "is given for a rule that is pinned; allowed: with mode on",
        ),
        (ACME, f"{LEARNS.format('acme')}, proposers: [candidate_head]", "", "is given for a rule that names candidate"),
    ],
)
def test_learning_that_means_nothing_or_that_nobody_agreed_to(match: str, terms: str, where: str, message: str) -> None:
    text = f"never_learn: hospital\nrules: [{{name: a, match: {{{match}}}, {terms}}}]"
    [one] = check(policy(text))
    assert (one.severity, one.where) == ("error", f"rules[0].learning{where and '.'}{where}")
    assert one.message.startswith(message)


@pytest.mark.parametrize("tenants", ["[]", "acme-*", "{a: 1}"])
def test_those_who_agree_are_named_one_by_one(tenants: str) -> None:
    with pytest.raises(InvalidPolicy, match=r"learning\.tenants"):
        policy(f"rules: [{{name: a, match: {{}}, {LEARNS.format(tenants)}}}]")


def test_learning_that_is_right_and_what_it_waits_for() -> None:
    alone = f"rules: [{{name: a, match: {{{ACME}}}, {LEARNS.format('acme')}}}]"
    shared = f"never_learn: [hospital]\nrules: [{{name: a, match: {{}}, {LEARNS.format(f'{BOTH}, {ALL}')}}}]"
    development = "default: {mode: on, learning: {tenants: ''}}"
    for text in (alone, shared, development):
        assert check(policy(text), Known(loaded=("suffix", "draft_head"))) == []
    [one] = check(policy(alone), Known(loaded=("suffix",)))
    assert (one.severity, one.where) == ("warning", "rules[0].learning")
    assert "no draft head is loaded here" in one.message
    [one] = check(policy(alone.replace("mode: on", "mode: on, rollout: {}")))
    assert (one.severity, one.where) == ("warning", "rules[0].learning")
    assert one.message.endswith("one begins only while that is on")
