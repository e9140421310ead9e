"""Figures of one request over several engines."""

from prolepsis.core.events import TokenLogprobs, Tokens
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import DeviceSeconds, EffectiveMode, ProposerCounts, RequestStats
from prolepsis.remote.stream import KeptStream, joined
from tests.fake_client import INFO


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


def test_recorded_drafts_of_all_engines_are_kept_in_order() -> None:
    first, last = RecordedDraft(0, 1, 4), RecordedDraft(0, 9, 4)
    total = joined([RequestStats(drafts={"suffix": [first]}), RequestStats(drafts={"suffix": [last]})])
    assert total.drafts == {"suffix": [first, last]}


def test_without_any_part_there_is_nothing() -> None:
    assert joined([]) == RequestStats()


def test_a_pause_is_what_the_client_waited_not_what_the_loss_took() -> None:
    now = 100.0
    stream = KeptStream(GenerateRequest("a", (1,), SamplingParams()), lambda: now)
    now = 101.0
    stream.take(Tokens("a", 0, (7,), position=0), INFO)
    now = 106.0  # it said nothing for 5 s
    stream.lose("engine_dead")
    now = 106.5
    _, continued = stream.take(Tokens("a", 0, (8,), position=1), INFO)
    assert continued is not None
    assert (continued.num_tokens, continued.pause_s) == (1, 5.5)
    stream.lose("engine_dead")
    now = 107.0
    _, again = stream.take(Tokens("a", 0, (9,), position=2), INFO)
    assert again is not None
    assert again.pause_s == 0.5


def test_an_answer_of_no_tokens_is_whole_and_is_not_asked_for_again() -> None:
    source = GenerateRequest("a", (1, 2), SamplingParams(max_tokens=0, prompt_logprobs=0))
    stream = KeptStream(source, lambda: 1.0)
    stream.lose("engine_dead")
    assert stream.next_request("refuse") == source, "its scores have not come"
    event = Tokens("a", 0, (), 0, finish_reason="length", prompt_logprobs=(TokenLogprobs(-1.0),))
    assert stream.take(event, INFO)[0] == event
    stream.lose("engine_dead")
    assert stream.is_complete
