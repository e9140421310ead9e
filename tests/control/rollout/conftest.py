"""Requests whose arms are the same in every run of the tests: an arm is drawn by the answer's random id."""

from itertools import count
from uuid import UUID

import pytest

from prolepsis.server.preparing import prepare


@pytest.fixture(autouse=True)
def numbered_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the answers of a test rising ids, in the order in which they were asked for."""
    numbers = count()
    monkeypatch.setattr(prepare, "uuid4", lambda: UUID(int=next(numbers)))
