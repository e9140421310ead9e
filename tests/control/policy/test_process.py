"""Whole processes on one PostgreSQL: what is applied at one is in use at the other, and after kill -9."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from prolepsis.core.config import ServerConfig
from tests.commands import free_port, wait_until_ready
from tests.control.store.databases import postgresql_setting
from tests.server_process import ServerProcess, serve_fake


@contextmanager
def processes(setting: str, number: int) -> Iterator[list[str]]:
    """Servers on one store that are killed in the end."""
    ports = [free_port() for _ in range(number)]
    running = [ServerProcess(serve_fake, ServerConfig(port=port, store=setting)) for port in ports]
    try:
        for port in ports:
            wait_until_ready(f"http://127.0.0.1:{port}/")
        yield [f"http://127.0.0.1:{port}/admin/policy" for port in ports]
    finally:
        for one in running:
            one.kill()
            one.wait()


@pytest.fixture
def own_postgresql() -> Iterator[str]:
    with postgresql_setting() as setting:
        yield setting


def in_use(url: str) -> Any:
    return httpx2.get(url, timeout=30).json()["version"]


def apply(url: str, text: str, expect: int) -> int:
    return httpx2.put(url, json={"text": text, "expect": expect}, timeout=30).status_code


def test_replicas_follow_each_other_and_a_restart_changes_nothing(own_postgresql: str) -> None:
    with processes(own_postgresql, 2) as (one, other):
        assert (in_use(one), in_use(other)) == (0, 0)
        assert apply(one, "default: {mode: off}", 0) == 200
        applied = time.monotonic()
        while in_use(other) != 1:
            assert time.monotonic() - applied < 60.0
            time.sleep(0.02)
        with ThreadPoolExecutor(2) as both:
            texts = ("default: {mode: on}", "default: {mode: shadow}")
            statuses = list(both.map(apply, (one, other), texts, (1, 1)))
        assert sorted(statuses) == [200, 409]
        shown = httpx2.get(f"{one}/versions/2").json()["text"]
        assert shown == texts[statuses.index(200)]
    with processes(own_postgresql, 1) as (again,):
        assert in_use(again) == 2
