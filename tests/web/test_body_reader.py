import pytest
from starlette.requests import Request

from prolepsis.web.body_reader import QueryReader
from prolepsis.web.errors import RequestRefused
from prolepsis.web.fields import Body


class Asked(Body):
    limit: int = 10


def request(query: bytes) -> Request:
    return Request({"type": "http", "headers": [], "query_string": query})


async def test_a_query_is_read_by_its_types() -> None:
    assert await QueryReader(Asked)(request(b"limit=3")) == Asked(limit=3)


async def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(RequestRefused, match="'limit' 2 times") as refused:
        await QueryReader(Asked)(request(b"limit=3&limit=4"))
    assert (refused.value.status, refused.value.param) == (400, "limit")
