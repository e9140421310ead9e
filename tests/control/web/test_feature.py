"""Features run side by side: what one of them does wrong stops neither the server nor the others."""

import asyncio
from collections.abc import Sequence

from prolepsis.control.web.feature import Feature, most_kept, running
from prolepsis.core.ended import Keep, RequestAbout
from prolepsis.core.requests import GenerateRequest, SamplingParams


class Counting(Feature):
    name = "counting"
    period_s = 60.0

    def __init__(self, *, first: bool = False, waits: asyncio.Event | None = None) -> None:
        self.ticks_before_serving = first
        self.num_ticks = 0
        self.is_closed = False
        self._waits = waits

    async def tick(self) -> None:
        if self._waits is not None:
            await self._waits.wait()
        self.num_ticks += 1

    async def close(self) -> None:
        self.is_closed = True


class Broken(Counting):
    async def run(self) -> None:
        raise ImportError("no detectors")

    async def close(self) -> None:
        raise RuntimeError("cannot close")


async def within(features: Sequence[Feature]) -> None:
    async with asyncio.timeout(5), running(features):
        pass


async def test_only_what_stops_speculation_ticks_before_the_first_request() -> None:
    database = asyncio.Event()  # it does not answer
    guard, slow = Counting(first=True), Counting(waits=database)
    async with asyncio.timeout(5), running([slow, guard]):
        assert (guard.num_ticks, slow.num_ticks) == (1, 0)


async def test_the_others_tick_at_the_start_too() -> None:
    feature = Counting()
    async with running([feature]):
        for _ in range(3):
            await asyncio.sleep(0)
        assert feature.num_ticks == 1


async def test_a_feature_that_cannot_run_or_close_does_not_affect_the_others() -> None:
    sound = Counting()
    await within([Broken(), sound])
    assert sound.is_closed


class Keeping(Feature):
    def __init__(self, kept: Keep) -> None:
        self._kept = kept

    def keeps(self, about: RequestAbout, request: GenerateRequest) -> Keep:
        return self._kept


def test_what_one_feature_keeps_adds_to_what_another_does() -> None:
    about = RequestAbout(answer_id="a", tenant="", key_id="", tier="standard", route="/", model="tiny")
    request = GenerateRequest("a", (1,), SamplingParams())
    both = most_kept([Keeping(Keep.DRAFTS), Keeping(Keep.SHAPES)], about, request)
    assert Keep.DRAFTS in both
    assert Keep.SHAPES in both
    assert Keep.DRAFTS not in most_kept([Keeping(Keep.TOKENS), Keeping(Keep.SHAPES)], about, request)
    assert most_kept([], about, request) == Keep.FIGURES
