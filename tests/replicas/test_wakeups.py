"""What one replica writes wakes the others; a connection that is lost is opened again."""

import asyncio
from contextlib import closing
from pathlib import Path

from structlog.testing import capture_logs

from prolepsis.replicas.wakeups import Wakeups
from prolepsis.safety.shared_controls import SharedControls, Values, copy_file
from prolepsis.store.controls import ControlTable
from prolepsis.store.notices import can_listen
from prolepsis.web.feature import running
from tests.store.databases import cut_off, opened

SOON_S = 30.0


class NeverPolls(SharedControls):
    """Follows the store only where it is woken."""

    async def run(self) -> None:
        return


async def test_replicas_follow_a_change_without_waiting_for_the_poll(postgresql: str, tmp_path: Path) -> None:
    with closing(opened(postgresql)) as ours, closing(opened(postgresql)) as theirs:
        setting = SharedControls(ControlTable(ours), copy_file(tmp_path / "a.json"))
        following = NeverPolls(ControlTable(theirs), copy_file(tmp_path / "b.json"))
        wakeups = Wakeups(theirs, {"controls": following})
        stopped = asyncio.Event()

        def follow(values: Values) -> None:
            if "everything" in values:
                stopped.set()

        following.follow("kill", follow)
        async with running([following, wakeups]), asyncio.timeout(SOON_S):
            await wakeups.listening.wait()
            setting.set("kill", "everything", "1")
            await stopped.wait()
        await asyncio.gather(setting.tick(), following.tick())


async def test_it_listens_again_after_the_connection_was_lost(postgresql: str, tmp_path: Path) -> None:
    with closing(opened(postgresql)) as database:
        following = NeverPolls(ControlTable(database), copy_file(tmp_path / "a.json"))
        wakeups = Wakeups(database, {"controls": following}, again_s=0.05)
        async with running([following, wakeups]), asyncio.timeout(SOON_S):
            await wakeups.listening.wait()
            with capture_logs() as logs, cut_off(postgresql):
                while not any(line["event"] == "not_woken" for line in logs):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert not wakeups.listening.is_set()
            await wakeups.listening.wait()
        await following.tick()


def test_sqlite_has_no_notices(sqlite: str) -> None:
    with closing(opened(sqlite)) as database:
        assert not can_listen(database)
