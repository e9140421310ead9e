"""Series of what an engine reports: its steps, faults and load, and the requests that it ended."""

import pytest

from prolepsis.core.figures import FaultCount, RequestDone, StepDone
from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import DeviceSeconds, EffectiveMode, ProposerCounts, RequestStats, count_draft
from prolepsis.core.telemetry.metrics import Metrics
from tests.core.telemetry.series import value

CLASS = "completions/standard/free/short"
BY_CLASS, BY_PROPOSER = {"traffic_class": CLASS}, {"proposer": "suffix"}
BOTH = BY_CLASS | BY_PROPOSER


def drafted() -> RequestStats:
    """Two drafts of `suffix`, 3 tokens with 2 accepted, and 2 with none."""
    counts = ProposerCounts()
    counts.record(3, 2)
    counts.record(2, 0)
    return RequestStats(
        num_prompt_tokens=10,
        num_cached_tokens=4,
        num_output_tokens=6,
        num_steps=4,
        num_preemptions=1,
        proposers={"suffix": counts},
        inside={"call": {"emitted": 4, "drafted": 5, "accepted": 2}, "text": {"emitted": 2}},
        plain_steps={"no_draft": 3, "too_costly": 1},
        mode=EffectiveMode("on", "speculating", 1),
        device=DeviceSeconds(plain=1.0, verify=0.3, propose=0.2),
        traffic_class=CLASS,
    )


@pytest.fixture(scope="module")
def counted() -> Metrics:
    """Return the metrics of a request that drafted, one that did not, steps, faults and a remote proposer."""
    metrics = Metrics()
    for figure in (
        *(RequestDone(drafted()), RequestDone(RequestStats(num_output_tokens=2))),
        *(StepDone({"forward": 0.5, "propose": 0.25}, 3), StepDone({"forward": 0.5}, 2)),
        *(FaultCount("proposer", "suffix", 2), FaultCount("grammar"), FaultCount("not_finite")),
        *(RemoteRounds(True, {"used": 2, "late": 1}, (0.004, 0.006)), RemoteRounds(False, {"failed": 1}, ())),
    ):
        metrics.observe(figure)
    metrics.set_load(3, 4, 0.5, ready=True)
    return metrics


@pytest.mark.parametrize(
    ("name", "labels", "number"),
    [
        ("requests_effective_total", {"mode": "on", "reason": "speculating"}, 1),
        ("generation_tokens_total", {}, 8),
        ("prefix_cache_hits_total", {}, 4),
        ("num_preemptions_total", {}, 1),
        ("spec_decode_num_drafts_total", BOTH, 2),
        ("spec_decode_num_draft_tokens_total", BOTH, 5),
        ("spec_decode_num_accepted_tokens_total", BOTH, 2),
        ("spec_decode_num_first_token_failures_total", BOTH, 1),
        *(
            (f"spec_decode_num_{kind}_tokens_per_pos_total", {**BY_PROPOSER, "position": str(position)}, number)
            for kind, numbers in (("draft", [2, 2, 1]), ("accepted", [1, 1, 0]))
            for position, number in enumerate(numbers)
        ),
        ("request_target_passes_sum", {"mode": "on"}, 4),
        ("request_tokens_per_pass_sum", {"mode": "on"}, 1.5),
        ("spec_decode_seconds_total", BY_CLASS, pytest.approx(0.5)),
        ("spec_decode_correction_seconds_total", BY_CLASS, pytest.approx(0.5 * 3 / 5)),
        ("spec_decode_inside_tokens_total", {"kind": "call", "result": "drafted"}, 5),
        ("spec_decode_inside_tokens_total", {"kind": "text", "result": "emitted"}, 2),
        ("spec_decode_num_plain_steps_total", {"reason": "no_draft"}, 3),
        ("spec_decode_num_plain_steps_total", {"reason": "too_costly"}, 1),
        ("step_stage_duration_seconds_sum", {"stage": "forward"}, 1.0),
        ("step_stage_duration_seconds_count", {"stage": "forward"}, 2),
        ("step_stage_duration_seconds_sum", {"stage": "propose"}, 0.25),
        ("steps_total", {}, 2),
        ("step_tokens_sum", {}, 5),
        ("step_duration_seconds_sum", {}, 1.25),
        ("spec_decode_proposer_failures_total", BY_PROPOSER, 2),
        ("grammar_failures_total", {}, 1),
        ("not_finite_failures_total", {}, 1),
        ("num_requests_running", {}, 3),
        ("remote_proposer_drafts_total", {"outcome": "used"}, 2),
        ("remote_proposer_drafts_total", {"outcome": "failed"}, 1),
        ("remote_proposer_round_seconds_count", {}, 2),
        ("remote_proposer_connected", {"proposer": "remote"}, 0),
    ],
)
def test_what_an_engine_reports_is_counted(counted: Metrics, name: str, labels: dict[str, str], number: float) -> None:
    assert value(counted, name, **labels) == number


def test_depths_are_those_of_whole_drafts_also_where_several_proposers_made_one() -> None:
    metrics, stats = Metrics(), drafted()
    count_draft(stats.proposers, ("suffix", "draft_head", "draft_head", "draft_head"), 3)
    metrics.observe(RequestDone(stats))
    buckets = ("1.0", "2.0", "3.0", "4.0", "5.0", "+Inf")
    assert [value(metrics, "spec_decode_draft_depth_tokens_bucket", le=le) for le in buckets] == [0, 1, 2, 3, 3, 3]
    assert value(metrics, "spec_decode_draft_depth_tokens_sum") == 3 + 2 + 4
    accepted = [value(metrics, "spec_decode_accepted_depth_tokens_bucket", le=le) for le in ("0.0", *buckets)]
    assert accepted == [1, 1, 2, 3, 3, 3, 3]


def test_drafts_in_shadow_are_counted_apart() -> None:
    metrics, stats = Metrics(), drafted()
    stats.proposers, stats.shadow = {}, stats.proposers
    metrics.observe(RequestDone(stats))
    for name, count in (("drafts", 2), ("drafted_tokens", 5), ("accepted_tokens", 2)):
        assert value(metrics, f"shadow_{name}_total", proposer="suffix") == count
    assert "prolepsis_spec_decode_num_drafts_total{" not in metrics.exposition().decode()


def test_two_engines_in_one_process_share_nothing(counted: Metrics) -> None:
    assert value(counted, "prompt_tokens_total") == 10
    assert value(Metrics(), "prompt_tokens_total") == 0


def test_a_replay_is_not_a_request() -> None:
    metrics = Metrics()
    before = metrics.exposition()
    metrics.observe(RequestDone(RequestStats(num_output_tokens=7, mode=EffectiveMode("off", "replay", 0))))
    changed = set(metrics.exposition().splitlines()) - set(before.splitlines())
    ours = {line for line in changed if not line.startswith(b"process_")}
    assert ours == {b"prolepsis_replay_tokens_total 7.0"}


def test_domain_and_language_of_a_class_have_series_of_their_own() -> None:
    metrics = Metrics()
    for parts in ("domain=medical/language=de", "domain=medical/language=other"):
        stats = drafted()
        stats.traffic_class = f"{CLASS}/default/{parts}"
        metrics.observe(RequestDone(stats))
    found = [
        value(metrics, f"spec_decode_num_{kind}_tokens_per_{part}_total", **{part: name})
        for part, name in (("domain", "medical"), ("language", "de"), ("language", "other"), ("language", "fr"))
        for kind in ("draft", "accepted")
    ]
    assert found == [10, 4, 5, 2, 5, 2, None, None]
