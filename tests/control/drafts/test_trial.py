"""A head drafts on given prompts; what is accepted is counted, and compared with the head before."""

from collections.abc import Callable, Iterable

import pytest

from prolepsis.control.drafts.trial import BRIEFLY, IN_THE_BACKGROUND, MAX_TOKENS, HeadTrial, try_head
from prolepsis.core.config import DRAFT_HEAD
from prolepsis.core.events import Event, Finished
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerCounts, RequestStats
from tests.fake_client import INFO, FakeEngineClient
from tests.virtual_time import virtual_time

PROMPTS = [(1, 2), (3,), (0,) * INFO.max_model_len]
COUNTS = ProposerCounts(10, 30, 12, [[10, 7], [10, 4], [10, 1]])


def ends_with(counts: ProposerCounts) -> Callable[[GenerateRequest], Iterable[Event]]:
    def answer(request: GenerateRequest) -> Iterable[Event]:
        assert (request.speculation.mode, request.speculation.proposers) == ("always", (DRAFT_HEAD,))
        assert (request.params.temperature, request.params.max_tokens) == (0.0, MAX_TOKENS)
        others = {"suffix": ProposerCounts(1, 1, 1)}
        yield Finished(request.request_id, RequestStats(num_output_tokens=22, proposers={DRAFT_HEAD: counts, **others}))

    return answer


async def test_the_heads_own_drafts_are_counted_on_prompts_that_fit() -> None:
    trial = await try_head(FakeEngineClient(ends_with(COUNTS)), PROMPTS, DRAFT_HEAD, BRIEFLY)
    assert (trial.num_prompts, trial.num_drafts, trial.num_draft_tokens, trial.num_accepted) == (2, 20, 60, 24)
    assert trial.describe() == ("2.20 tokens a pass with a draft on 2 prompts, 40.0% of 60 draft tokens accepted")
    assert 1.2 < trial.most_accepted < 2.0


async def test_a_head_that_drafts_nothing_is_not_asked_on() -> None:
    client = FakeEngineClient(ends_with(ProposerCounts()))
    trial = await try_head(client, [(1,)] * 9, DRAFT_HEAD, IN_THE_BACKGROUND)
    assert (trial.describe(), len(client.requests)) == ("it drafted nothing on 2 prompts", 2)


@virtual_time
async def test_under_a_load_that_leaves_no_room_it_is_asked_as_one_of_the_others() -> None:
    def answer(request: GenerateRequest) -> Iterable[Event | float]:
        yield 3600.0 if request.priority else 4.0
        yield from ends_with(COUNTS)(request)

    client = FakeEngineClient(answer)
    trial = await try_head(client, [(1,)] * 16, DRAFT_HEAD, IN_THE_BACKGROUND)
    assert (trial.num_prompts, client.requests[0].priority, client.requests[1].priority) == (7, 2**31 - 1, 0)
    assert [request.request_id for request in (client.requests[0], client.requests[-1])] == client.aborted


@pytest.mark.parametrize(
    ("num_drafts", "num_accepted", "before", "is_worse"),
    [
        (31, 0, 30, True),  # one answer is enough
        (31, 0, None, True),  # next to nothing, whatever was before
        (5, 0, 30, False),  # too few to say
        (200, 80, 200, True),
        (200, 120, 200, False),
        (200, 120, None, False),
    ],
)
def test_much_worse_is_surely_below_half(
    num_drafts: int, num_accepted: int, before: int | None, is_worse: bool
) -> None:
    def trial(num_drafts: int, num_accepted: int) -> HeadTrial:
        counts = ProposerCounts(num_drafts, 4 * num_drafts, num_accepted, [[num_drafts, num_accepted]])
        return HeadTrial.of(4, counts)

    known = trial(200, before) if before is not None else None
    assert trial(num_drafts, num_accepted).is_much_worse(known) == is_worse
