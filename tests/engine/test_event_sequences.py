"""Random events, from decisions about drafts to rollouts, cost and drift: nothing raises, and no answer changes.

PROLEPSIS_EVENT_SEQUENCES: how many sequences of events to live through.
"""

import os
from pathlib import Path

from tests.simulation.event_sequences import lives

NUM_SEQUENCES = int(os.environ.get("PROLEPSIS_EVENT_SEQUENCES", "200"))


async def test_random_events_raise_nothing_and_change_no_answer(tmp_path: Path) -> None:
    server = await lives(tmp_path, range(NUM_SEQUENCES))
    assert server.ends[""] > NUM_SEQUENCES
    assert {"engine_error", "grammar_failed", "deadline_exceeded"} <= server.ends.keys()
    assert not server.health.detail, "some failed, most did not"
