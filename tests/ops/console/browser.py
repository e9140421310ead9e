"""What a person does in a browser, over plain HTTP."""

import re

import httpx2

Fields = dict[str, str]


def token_of(page: httpx2.Response) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return found[1]


async def sign_in(http: httpx2.AsyncClient, key: str) -> httpx2.Response:
    return await http.post("/console/sign-in", data={"key": key, "next": "/console/kill"})


async def press(http: httpx2.AsyncClient, act: str, page: str = "/console", **fields: str) -> httpx2.Response:
    """Send a form of `page` and return the page that comes next."""
    token = token_of(await http.get(page))
    sent = await http.post(f"/console/act/{act}", data={"csrf": token, "next": page, **fields})
    assert sent.status_code == 303, sent.text
    return await http.get(sent.headers["location"])
