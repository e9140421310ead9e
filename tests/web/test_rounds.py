import asyncio

from prolepsis.web.rounds import PERIOD_S, SLICE_S, Slice, Starts
from tests.api.admission.clock import Clock


def test_a_slice_ends_and_the_next_period_has_another() -> None:
    clock = Clock()
    one = Slice(clock)
    for _ in range(3):
        assert not one.is_over()
        clock.now += SLICE_S / 2
        assert not one.is_over()
        clock.now += SLICE_S
        assert one.is_over()
        clock.now += PERIOD_S


async def test_one_request_a_round_goes_on() -> None:
    starts, seen = Starts(), list[int]()

    async def begin(number: int) -> None:
        await starts.turn("acme")
        seen.append(number)

    tasks = [asyncio.create_task(begin(i)) for i in range(10)]
    sizes = list[int]()
    while len(seen) < 10:
        await asyncio.sleep(0)
        sizes.append(len(seen))
    assert max(after - before for before, after in zip([0, *sizes], sizes, strict=False)) == 1
    assert seen == list(range(10))
    await asyncio.gather(*tasks)


async def test_a_flood_of_one_client_delays_anothers_request_by_one() -> None:
    starts, seen = Starts(), list[str]()

    async def begin(client: str) -> None:
        await starts.turn(client)
        seen.append(client)

    flood = [asyncio.create_task(begin("flood")) for _ in range(50)]
    await asyncio.sleep(0)
    other = asyncio.create_task(begin("other"))
    await asyncio.gather(*flood, other)
    assert seen.index("other") <= 2


async def test_who_leaves_is_passed_over() -> None:
    starts = Starts()
    leaves = [asyncio.create_task(starts.turn("acme")) for _ in range(3)]
    await asyncio.sleep(0)
    stays = asyncio.create_task(starts.turn("acme"))
    for task in leaves:
        task.cancel()
    await asyncio.wait_for(stays, 10)
    await asyncio.gather(*leaves, return_exceptions=True)
    await asyncio.wait_for(starts.turn("other"), 10)
