import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from prolepsis.core.events import Difference
from prolepsis.core.recording import Replayed
from prolepsis.core.rounds import MAX_ROUNDS
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.ops.tracing.spans import Span, replay_span, request_spans
from tests.contract.surface import attributes
from tests.ops.tracing.ended import ARRIVAL, TRACE, prompt_ended, request_ended, round_at
from tests.ops.tracing.receiver import tree
from tests.paths import ROOT


def by_name(spans: Sequence[Span], name: str) -> Span:
    [found] = [span for span in spans if span.name == name]
    return found


def test_phases_and_rounds_are_below_the_request() -> None:
    ended = request_ended(prompt_ended(rounds=[round_at(0.6), round_at(0.7, accepted=0, position=4)]))
    spans = request_spans(ended, TRACE, "sampled")
    assert tree(spans) == {
        TRACE.parent_id: ["chat tiny"],
        "chat tiny": ["queue", "prefill", "decode"],
        "decode": ["round", "round"],
    }
    assert by_name(spans, "chat tiny").times == (ARRIVAL - 0.25, ARRIVAL + 1.25)
    assert by_name(spans, "queue").times == (ARRIVAL - 0.125, ARRIVAL + 0.125)
    assert by_name(spans, "prefill").times == (ARRIVAL + 0.125, ARRIVAL + 0.5)
    assert by_name(spans, "decode").times == (ARRIVAL + 0.5, ARRIVAL + 1.0)
    first, second = [span for span in spans if span.name == "round"]
    assert first.times == (ARRIVAL + 0.6, ARRIVAL + 0.61)
    assert first.attributes["prolepsis.speculation.proposal.id"] == "r/0/1"
    assert (first.attributes["prolepsis.speculation.outcome"], second.attributes["prolepsis.speculation.outcome"]) == (
        "partly_accepted",
        "rejected",
    )
    assert "prolepsis.speculation.proposer.version" not in first.attributes


def test_the_request_has_todays_names_and_latencies() -> None:
    found = request_spans(request_ended(prompt_ended()), TRACE, "sampled")[-1].attributes
    assert {name: value for name, value in found.items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "prolepsis",
        "gen_ai.output.type": "text",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 128,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 5,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.latency.time_in_queue": 0.125,
        "gen_ai.latency.time_in_model_prefill": 0.375,
        "gen_ai.latency.time_in_model_decode": 0.5,
        "gen_ai.latency.time_in_model_inference": 0.875,
        "gen_ai.latency.time_to_first_token": 0.5,
        "gen_ai.latency.e2e": 1.0,
    }
    assert found["prolepsis.tenant.hash"] != "acme"
    assert "acme" not in str(found)


def test_prompts_of_one_request_have_spans_of_their_own() -> None:
    spans = request_spans(request_ended(prompt_ended("r0"), prompt_ended("r1")), TRACE, "sampled")
    assert tree(spans)["chat tiny"] == ["prompt", "prompt"]
    assert sorted(tree(spans)["prompt"]) == ["decode", "decode", "prefill", "prefill", "queue", "queue"]
    own = spans[-1].attributes
    assert own["gen_ai.usage.output_tokens"] == 40
    assert "gen_ai.latency.e2e" not in own


def test_later_rounds_are_summed_up() -> None:
    prompt = prompt_ended(rounds=[round_at(0.5 + i / 1000) for i in range(MAX_ROUNDS)])
    counts = ProposerCounts(MAX_ROUNDS + 6, 3 * MAX_ROUNDS + 18, 2 * MAX_ROUNDS + 5)
    more = replace(prompt, stats=replace(prompt.stats, proposers={"suffix": counts}))
    spans = request_spans(request_ended(more), TRACE, "sampled")
    assert len([span for span in spans if span.name == "round"]) == MAX_ROUNDS
    later = by_name(spans, "later rounds")
    assert later.attributes == {
        "prolepsis.speculation.rounds": 6,
        "prolepsis.speculation.drafted_tokens": 18,
        "prolepsis.speculation.accepted_tokens": 5,
    }
    assert later.times[1] == ARRIVAL + 1.0
    exactly = request_spans(request_ended(prompt), TRACE, "sampled")
    assert "later rounds" not in {span.name for span in exactly}


def test_a_stored_answer_has_no_phases() -> None:
    cached = replace(prompt_ended(), answer="cached")
    [own] = request_spans(request_ended(cached), TRACE, "sampled")
    assert own.attributes["prolepsis.answer"] == "cached"
    assert "gen_ai.latency.e2e" not in own.attributes


@pytest.mark.parametrize("first_token_at", [ARRIVAL + 0.5, None])
def test_without_the_engines_figures_phases_are_those_that_the_server_saw(first_token_at: float | None) -> None:
    stats = RequestStats(num_prompt_tokens=7, num_output_tokens=3)
    prompt = prompt_ended(end="left")
    left = replace(prompt, answer="unreported", stats=stats, first_token_at=first_token_at)
    spans = request_spans(request_ended(left, end="left"), TRACE, "sampled")
    assert by_name(spans, "queue").times == (ARRIVAL - 0.125, ARRIVAL)
    assert by_name(spans, "prefill").times == (ARRIVAL, first_token_at or ARRIVAL + 1.25)
    assert ("decode" in {span.name for span in spans}) == (first_token_at is not None)
    own = spans[-1]
    assert (own.failed, own.attributes["prolepsis.end"], own.attributes["prolepsis.answer"]) == (
        False,
        "left",
        "unreported",
    )
    assert "prolepsis.mode.effective" not in own.attributes


def test_errors_are_marked_with_their_code() -> None:
    own = request_spans(request_ended(prompt_ended(end="failed"), end="failed"), TRACE, "error")[-1]
    assert (own.failed, own.attributes["error.type"], own.attributes["prolepsis.trace.kept"]) == (
        True,
        "engine_error",
        "error",
    )
    own = request_spans(request_ended(end="aborted"), TRACE, "error")[-1]
    assert (own.failed, own.attributes["error.type"]) == (True, "aborted")


def test_a_trace_made_twice_has_the_same_ids() -> None:
    ended = request_ended(prompt_ended("r0", rounds=[round_at(0.6)]), prompt_ended("r1"))
    once, again = (request_spans(ended, TRACE, "sampled") for _ in range(2))
    assert [span.span_id for span in once] == [span.span_id for span in again]


def test_a_replay_is_below_the_request_that_it_repeats() -> None:
    replayed = Replayed({0: Difference(4, 1, 2, "structural"), 1: Difference(2, 1, 2, "near_tie")}, ((), ()))
    span = replay_span(TRACE, "r", replayed, (ARRIVAL + 9, ARRIVAL + 10))
    assert (span.trace_id, span.parent_id, span.failed) == (TRACE.trace_id, TRACE.span_id, True)
    assert span.attributes == {
        "prolepsis.request.id": "r",
        "prolepsis.replay.outcome": "structural",
        "prolepsis.replay.position": 2,
        "error.type": "mismatch",
    }


def test_the_documentation_lists_every_name_of_an_attribute_and_no_other() -> None:
    document = (ROOT / "docs" / "how-to" / "traces.md").read_text()
    listed = re.findall(r"`([a-z_0-9]+\.[a-z_.0-9]+)`", document.partition("## Attributes")[2])
    assert sorted(listed) == sorted(attributes())
