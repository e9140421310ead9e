import pytest

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.client_draft import ClientDraft
from prolepsis.server.verify.streams import VerifyStream, VerifyStreams
from tests.fake_client import FakeEngineClient, answer
from tests.fakes import request

CALLER = Caller("key", "acme", frozenset({"client"}), "standard")


ENGINE = FakeEngineClient(answer([[1]]))


def stream() -> VerifyStream:
    ENGINE.offered.clear()
    return VerifyStream(request("r", [1]), CALLER, ENGINE, lambda: None)


def test_tokens_are_compared_with_the_draft() -> None:
    one = stream()
    assert one.send([1, 2]) == (0, False), "without a draft nothing is accepted or corrected"
    assert one.take(ClientDraft(1, (2, 3, 4, 5))) is None
    assert one.send([3]) == (1, False)
    assert one.send([4, 9, 9]) == (1, True)
    assert one.send([5]) == (0, False), "a draft is corrected once"
    assert one.take(ClientDraft(7, (7,))) is None
    assert one.send([7, 8]) == (1, False), "a token behind the draft's end corrects nothing"


def test_drafts_that_are_late_or_ahead_are_not_offered() -> None:
    one = stream()
    one.send([1, 2, 3])
    assert one.take(ClientDraft(1, (2, 3))) == "late", "passed"
    assert one.take(ClientDraft(1, (2, 9, 9))) == "late", "left"
    assert one.take(ClientDraft(4, (5,))) == "ahead"
    assert not ENGINE.offered
    assert one.take(ClientDraft(2, (3, 4))) is None
    assert ENGINE.offered == [("r", ClientDraft(2, (3, 4)))]
    assert (one.num_drafts, one.num_late) == (4, 2)


@pytest.mark.parametrize("caller", [Caller("other", "acme", CALLER.roles, ""), Caller("key", "else", CALLER.roles, "")])
def test_a_stream_is_found_by_its_own_key_while_it_is_open(caller: Caller) -> None:
    streams, one = VerifyStreams(), stream()
    with streams.opened(one):
        assert streams.find("r", CALLER) is one
        with pytest.raises(RequestRefused, match="No stream 'r' of this key"):
            streams.find("r", caller)
    with pytest.raises(RequestRefused) as refused:
        streams.find("r", CALLER)
    assert (refused.value.status, refused.value.code) == (404, "stream_not_found")
