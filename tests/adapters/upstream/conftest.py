import pytest

from tests.adapters.upstream.fakes import FakeUpstream


@pytest.fixture
def plain() -> FakeUpstream:
    return FakeUpstream()


@pytest.fixture
def speculating() -> FakeUpstream:
    return FakeUpstream(drafts=(3, 12, 4))
