"""Sessions end: by disuse, by age, by the number of a key's sessions, by signing out."""

from prolepsis.ops.console.sessions import IDLE_S, LONGEST_S, MAX_OF_KEY, Sessions
from tests.clock import Clock


def test_a_session_that_is_not_used_ends_and_updates_of_an_open_page_are_no_use() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    cookie, session = sessions.open(b"key")
    clock.now += IDLE_S - 1.0
    assert sessions.find(cookie, used=True) is session
    clock.now += IDLE_S - 1.0
    assert sessions.find(cookie, used=False) is session
    clock.now += 2.0
    assert sessions.find(cookie, used=False) is None


def test_a_session_ends_after_its_longest_time() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    cookie, _ = sessions.open(b"key")
    for _ in range(int(LONGEST_S / 1000.0)):
        clock.now += 1000.0
        assert sessions.find(cookie, used=True) is not None
    clock.now += 1000.0
    assert sessions.find(cookie, used=True) is None


def test_a_key_that_opens_many_sessions_ends_its_own_oldest_only() -> None:
    sessions = Sessions()
    other, _ = sessions.open(b"other")
    cookies = [sessions.open(b"key")[0] for _ in range(MAX_OF_KEY + 2)]
    found = [sessions.find(cookie, used=True) is not None for cookie in cookies]
    assert found == [False, False, *[True] * MAX_OF_KEY]
    assert sessions.find(other, used=True) is not None


def test_a_closed_session_and_an_unknown_cookie_open_nothing() -> None:
    sessions = Sessions()
    cookie, session = sessions.open(b"key")
    sessions.close(session)
    assert [sessions.find(one, used=True) for one in (cookie, "made up", "", None)] == [None] * 4
