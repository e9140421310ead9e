"""Acceptance figures derived from raw counts."""

import json

import pytest

from prolepsis.core.stats import EffectiveMode, ProposerCounts, RequestStats
from prolepsis.server.cli.generate import figures, print_stats, tokens_per_s


def counted() -> RequestStats:
    stats = RequestStats(num_prompt_tokens=10, num_output_tokens=12, num_steps=4, total_s=0.5, first_token_s=0.1)
    counts = ProposerCounts()
    counts.record(4, 4)
    counts.record(4, 2)
    counts.record(2, 0)
    stats.proposers["suffix"] = counts
    stats.mode = EffectiveMode("on", "speculating", 0)
    stats.plain_steps = {"no_draft": 1, "no_capacity": 2}
    return stats


def test_figures_of_a_request() -> None:
    values = figures(counted())
    assert values["tokens_a_pass"] == 3.0
    assert values["tokens_per_s"] == 24.0
    assert values["first_token_ms"] == 100.0
    assert (values["mode"], values["reason"]) == ("on", "speculating")
    assert values["plain_steps"] == {"no_draft": 1, "no_capacity": 2}
    assert values["proposers"] == {
        "suffix": {
            "num_drafts": 3,
            "num_draft_tokens": 10,
            "num_accepted": 6,
            "acceptance_rate": 0.6,
            "tokens_a_pass": 3.0,
            "per_position": [
                {"drafted": 3, "accepted": 2},
                {"drafted": 3, "accepted": 2},
                {"drafted": 2, "accepted": 1},
                {"drafted": 2, "accepted": 1},
            ],
        }
    }
    json.dumps(values)


def test_figures_of_a_request_that_did_nothing_hold_no_division_by_zero() -> None:
    stats = RequestStats(proposers={"suffix": ProposerCounts()})
    values = figures(stats)
    assert tokens_per_s(stats) is None
    assert values["tokens_per_s"] is None
    assert values["tokens_a_pass"] == 1.0


def test_figures_go_to_stderr_and_leave_stdout_to_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_stats(counted())
    streams = capsys.readouterr()
    assert streams.out == ""
    for shown in ("tokens_a_pass", "3.0", "suffix", "0.600", "1 no_draft, 2 no_capacity"):
        assert shown in streams.err
