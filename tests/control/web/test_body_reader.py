import pytest
from starlette.requests import Request

from prolepsis.control.web.body_reader import QueryReader, parse_body
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body


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


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b'{"limit": [' + b"[], " * 2000 + b"no JSON", "2003 fields, lists and objects; allowed: 2000"),
        (b'{"limit": [' + b"1," * 4001 + b"no JSON", "4001 commas between values; allowed: 4000"),
    ],
)
def test_a_large_body_of_too_many_members_is_refused_before_it_is_read(body: bytes, what: str) -> None:
    with pytest.raises(RequestRefused, match=f"has {what}") as refused:
        parse_body(body, Asked, most_members=2000)
    assert (refused.value.status, refused.value.code) == (400, "too_many_fields")
    assert parse_body(b'{"limit": 3' + b" " * 5000 + b"}", Asked, most_members=2) == Asked(limit=3)
