"""Figures of one request over several engines."""

from prolepsis.core.stats import DeviceSeconds, EffectiveMode, ProposerCounts, RequestStats
from prolepsis.failover.stream import joined


def part(num_steps: int, heads: dict[str, str | None], *, drafts: bool) -> RequestStats:
    counts = ProposerCounts()
    counts.record(4, 3)
    return RequestStats(
        num_cached_tokens=num_steps,
        num_steps=num_steps,
        proposers={"suffix": counts} if drafts else {},
        heads=heads,
        device=DeviceSeconds(plain=0.5),
        queue_s=0.25,
        mode=EffectiveMode("on" if drafts else "off", "speculating" if drafts else "no_draft", 1),
        plain_steps={"no_draft": 2},
    )


def test_counts_and_seconds_add_up() -> None:
    total = joined([part(3, {}, drafts=True), part(5, {}, drafts=True), part(2, {}, drafts=False)])
    assert (total.num_steps, total.num_accepted, total.num_draft_tokens) == (10, 6, 8)
    assert (total.device.plain, total.queue_s, total.plain_steps) == (1.5, 0.75, {"no_draft": 6})
    assert total.num_cached_tokens == 3, "of the prompt, when it came"
    assert total.mode.mode == "on", "it speculated, though not in its last engine"


def test_drafts_of_two_heads_are_evidence_of_neither() -> None:
    same = joined([part(1, {"head": "a@1"}, drafts=True), part(1, {"head": "a@1"}, drafts=True)])
    assert same.heads == {"head": "a@1"}
    other = joined([part(1, {"head": "a@1"}, drafts=True), part(1, {"head": "a@2"}, drafts=True)])
    assert other.heads == {"head": None}
    assert joined([part(1, {"head": "a@1"}, drafts=True), part(1, {}, drafts=True)]).heads == {"head": None}


def test_without_any_part_there_is_nothing() -> None:
    assert joined([]) == RequestStats()
