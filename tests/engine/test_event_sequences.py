"""Random events, from decisions about drafts to rollouts, cost and drift: nothing raises, and no answer changes.

PROLEPSIS_EVENT_SEQUENCES: how many sequences of events to live through; by default three times as many as properties
have examples, so 900 at night.
"""

import os
from pathlib import Path

from hypothesis import settings

from tests.simulation.event_sequences import lives


async def test_random_events_raise_nothing_and_change_no_answer(tmp_path: Path) -> None:
    number = int(os.environ.get("PROLEPSIS_EVENT_SEQUENCES") or 3 * settings().max_examples)
    server = await lives(tmp_path, range(number))
    assert server.ends[""] > number
    assert server.num_lent > 0, "drafts gave way to sequences"
    assert {"engine_error", "grammar_failed", "deadline_exceeded"} <= server.ends.keys()
    assert not server.health.detail, "some failed, most did not"
