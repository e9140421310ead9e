"""Sampling parameters that a client leaves out are those that the model's makers recommend."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import httpx2
import pytest

from prolepsis.core.requests import SamplingDefaults
from tests.fake_client import INFO
from tests.server.fakes import FakeEngine

Connect = Callable[[FakeEngine], httpx2.AsyncClient]
DEFAULTS = SamplingDefaults(
    temperature=0.2, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, source="catalogue"
)
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": "tiny", "prompt": "Hi"},
    "/v1/responses": {"model": "tiny", "input": "Hi"},
}


def engine(defaults: SamplingDefaults = DEFAULTS) -> FakeEngine:
    return FakeEngine(info=replace(INFO, default_sampling=defaults))


async def sampled(client: Connect, serving: FakeEngine, route: str, **given: object) -> dict[str, object]:
    response = await client(serving).post(route, json={**BODIES[route], **given})
    assert response.status_code == 200
    return {name: getattr(serving.requests[-1].params, name) for name in FIELDS}


def expected(**changes: object) -> dict[str, object]:
    return {**{name: getattr(DEFAULTS, name) for name in FIELDS}, **changes}


@pytest.mark.parametrize("route", BODIES)
async def test_parameters_left_out_take_the_models_values(client: Connect, route: str) -> None:
    assert await sampled(client, engine(), route) == expected()


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("given", [{"temperature": 0}, {"temperature": 1.0, "top_p": 1.0}, {"top_k": 0}, {"top_k": 7}])
async def test_stated_parameters_hold(client: Connect, route: str, given: dict[str, object]) -> None:
    assert await sampled(client, engine(), route, **given) == expected(**given)


@pytest.mark.parametrize("route", BODIES)
async def test_without_a_recommendation_openais_defaults_hold(client: Connect, route: str) -> None:
    found = await sampled(client, engine(SamplingDefaults()), route)
    assert found == {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


async def test_a_response_states_the_parameters_in_effect(client: Connect) -> None:
    body = (await client(engine()).post("/v1/responses", json=BODIES["/v1/responses"])).json()
    assert (body["temperature"], body["top_p"]) == (0.2, 0.9)


async def test_the_list_of_models_shows_them(client: Connect) -> None:
    (model,) = (await client(engine()).get("/v1/models")).json()["data"]
    assert model["default_sampling"] == asdict(DEFAULTS)
