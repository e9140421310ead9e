import socket

import pytest

from prolepsis.control.rollout.deployment import deployment_id, instances_of, matchers_of
from prolepsis.control.store.controls import ControlTable
from tests.control.rollout.stores import memory_database


def test_the_servers_of_a_store_have_one_name_and_another_store_has_another() -> None:
    table = ControlTable(memory_database())
    name = deployment_id(table)
    assert len(name) == 12
    assert deployment_id(table) == name
    assert deployment_id(ControlTable(memory_database())) != name


def test_servers_are_called_as_prometheus_may_call_them() -> None:
    assert instances_of(["http://10.0.0.7:8000", "https://[::1]:8443"]) == ["10.0.0.7:8000", "[::1]:8443"]
    everywhere = instances_of([f"http://{socket.gethostname()}:8000"])
    assert {"127.0.0.1:8000", "localhost:8000", f"{socket.gethostname()}:8000"} <= set(everywhere)


@pytest.mark.parametrize(
    ("values", "pattern"),
    [(["a.b:1"], r"(a\.b:1)?"), (["m-1", "[::1]:8"], r"(\[::1\]:8|m-1)?"), (["ORG/name v2"], "(ORG/name v2)?")],
)
def test_alerts_match_by_value_or_without_the_label(values: list[str], pattern: str) -> None:
    assert matchers_of({"x": values}) == [{"name": "x", "value": pattern, "isRegex": True, "isEqual": True}]
    assert matchers_of({"region": [""], "model": []}) == []
