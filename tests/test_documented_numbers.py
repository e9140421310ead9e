"""Numbers that the documentation states are those of the code."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from prolepsis.control.health.breaker import BreakerSettings
from prolepsis.control.health.eligibility import HALF_LIFE, MIN_DRAFTS, StartTerms
from prolepsis.control.policy.check import MAX_FLAGS
from prolepsis.control.policy.model import PRESETS, Terms
from prolepsis.control.policy.rollout_terms import RolloutTerms
from prolepsis.control.web.fields import MAX_PROMPTS, MAX_SAMPLES
from prolepsis.core.config import EngineConfig, LimitTerms, RemoteProposerTerms, ServerConfig
from prolepsis.core.facts import MAX_CLASS_RULES, MEDIUM, SHORT
from prolepsis.core.requests import MAX_LOGIT_BIASES, MAX_STOP_CHARACTERS, MAX_STOP_STRINGS
from prolepsis.server.batches import lines, routes
from tests.paths import ROOT

DOCS = ROOT / "docs"
RUNBOOKS = ROOT / "src" / "prolepsis" / "ops" / "console" / "runbooks"
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if "log" not in page.parts),
    *sorted(RUNBOOKS.glob("*.md")),
]
POLICIES = (DOCS / "how-to" / "policies.md").read_text()


def test_presets_give_what_the_table_says() -> None:
    stated = {
        name: (words, None if free is None else set(re.findall(r"`(\w+)`", free)))
        for names, words, free in re.findall(
            r"^\| (`.+`) \| (on, ceiling \d+)(?:, free proposers only(.*))? \|$", POLICIES, re.M
        )
        for name in re.findall(r"`([\w-]+)`", names)
    }
    assert stated.keys() == PRESETS.keys()
    free = set(PRESETS["summarise"].proposers or ())
    for name, preset in PRESETS.items():
        words, proposers = stated[name]
        assert words == f"{preset.mode}, ceiling {preset.num_speculative_tokens}", name
        assert (proposers or set()) in ({*(preset.proposers or ())}, set()), name
        assert preset.proposers is None or set(preset.proposers) == free, name


def defaults_stated(page: str) -> Iterator[tuple[str, str]]:
    """Yield names and defaults of a page's tables of fields; several names of a row have a default each."""
    for table in re.findall(r"^\| (?:term|field) \| default \|.*\n((?:\|.*\n)+)", page, re.M):
        for names, values in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", table, re.M):
            several = [values] if names.count("`") == 2 else values.split(", ")
            yield from zip(re.findall(r"`(\w+)`", names), several, strict=False)


@pytest.mark.parametrize(("page", "model", "least"), [("policies", Terms, 4), ("rollouts", RolloutTerms, 9)])
def test_fields_of_a_policy_have_the_defaults_that_are_stated(page: str, model: Any, least: int) -> None:
    found = 0
    for name, stated in defaults_stated((DOCS / "how-to" / f"{page}.md").read_text()):
        value = model.model_fields[name].default if name in model.model_fields else None
        if isinstance(value, bool | int | float | str | tuple) and value != ():
            written = json.dumps(list(value) if isinstance(value, tuple) else value).strip('"').removesuffix(".0")
            assert stated.strip("`") == written, name
            found += 1
    assert found >= least


SETTING = re.compile(
    r"`(?:--)?(?P<name>[a-z][a-z._-]+)(?: [A-Z]+)?`"
    r"(?:[^`|.;(]{0,40}\((?:default:? )?(?P<in_brackets>[\d.,]*\d)(?:;[^)]*)?\)"
    r"|[^`|.;]{0,60}?\bdefault:? (?:is )?`?(?P<said>[\d.,]*\d)\b(?!,))"
)
"""A setting and its default, as `name` (5) or `--name` ... default 5."""


def settings() -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    blocks: Sequence[tuple[str, type[BaseModel]]] = (
        ("", EngineConfig),
        ("", ServerConfig),
        ("limits.", LimitTerms),
        ("remote_proposer.", RemoteProposerTerms),
    )
    for prefix, config in blocks:
        for name, field in config.model_fields.items():
            if isinstance(field.default, int | float):
                found.setdefault(f"{prefix}{name}", []).append(float(field.default))
    return found


def test_settings_have_the_defaults_that_are_stated() -> None:
    defaults, wrong, seen = settings(), list[str](), set[tuple[Path, str]]()
    for page in PAGES:
        for match in SETTING.finditer(page.read_text()):
            name = match["name"].replace("-", "_")
            if name in defaults:
                stated = float((match["in_brackets"] or match["said"]).replace(",", ""))
                seen.add((page, name))
                wrong += [f"{page.name}: {match[0]!r}"] if stated not in defaults[name] else []
    assert not wrong
    assert len(seen) >= 15, "the pattern finds them"


BREAKER = BreakerSettings()
STATED = {
    "how-to/policies.md": (
        f"at most {MAX_FLAGS} per policy",
        f"The first judgement needs {MIN_DRAFTS} drafts; a draft has half its weight after {HALF_LIFE:g} more",
        f"until {ServerConfig().limits.start_drafts} drafts of a traffic class were seen",
        f"num_drafts: {StartTerms().num_drafts}}}",
        f"drafts of at most {StartTerms().num_speculative_tokens} tokens",
    ),
    "reference/ceilings.md": (f"conservative start: {StartTerms().num_speculative_tokens} |",),
    "how-to/safety.md": (
        f"of a policy the first {MAX_CLASS_RULES}\n",
        f"`medium` from {SHORT + 1} prompt tokens, `long` from\n{MEDIUM + 1})",
        f"after {BREAKER.open_s:g} s, doubled with every failed probe up to {BREAKER.max_open_s:g} s; "
        f"{BREAKER.open_s:g} s again after {BREAKER.reset_after_s:g} s closed",
        f"at most {BREAKER.probes} drafts | after {BREAKER.min_probed} judged drafts",
        f"It closes from {BREAKER.acceptance_to_close / BREAKER.min_acceptance:.1f} times this rate on",
        f"cost more than {BREAKER.max_cost} times the tokens",
        f"(at least {BREAKER.min_rounds}\n  rounds); it closes at {BREAKER.cost_to_close} times",
        f"{BREAKER.errors_in_row} calls in a row raised",
        f"{BREAKER.late_in_row} calls in a row took longer",
    ),
    "how-to/batches.md": (
        f"| lines of a file | {lines.MOST_LINES:,}, and as many empty ones |",
        f"| size of a file | {lines.MOST_BYTES >> 20} MiB |",
        f"`batch_file_bytes`, {ServerConfig().batch_file_bytes >> 30} GiB",
        f"| batches of a tenant that have not ended | {routes.MOST_RUNNING} |",
    ),
    "reference/api.md": (
        f"up to {MAX_PROMPTS} prompts a request",
        f"`stop` ({MAX_STOP_STRINGS} strings of {MAX_STOP_CHARACTERS:,} characters)",
        f"`logit_bias` ({MAX_LOGIT_BIASES:,} tokens)",
        f"`n` ({MAX_SAMPLES} answers a request)",
    ),
}
"""Sentences by page, with the numbers of the code in them."""


@pytest.mark.parametrize(("page", "text"), [(page, text) for page, texts in STATED.items() for text in texts])
def test_a_page_states_the_number_of_the_code(page: str, text: str) -> None:
    assert text in (DOCS / page).read_text()
