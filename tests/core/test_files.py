"""A lock on a file is held by one at a time."""

import threading
from pathlib import Path

from prolepsis.core.files import exclusive


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    lock, inside = tmp_path / "locks" / "a", threading.Event()

    def enter() -> None:
        with exclusive(lock):
            inside.set()

    waiting = threading.Thread(target=enter, daemon=True)
    with exclusive(lock):
        waiting.start()
        assert not inside.wait(0.1)
    assert inside.wait(60)
