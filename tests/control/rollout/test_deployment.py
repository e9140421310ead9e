import socket

import pytest

from prolepsis.control.rollout.silences import deployment_id, instances_of, matchers_of
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
    ("name", "values", "pattern"),
    [
        ("instance", ["a.b:1"], r"(a\.b:1)"),
        ("instance", ["m-1", "[::1]:8"], r"(\[::1\]:8|m-1)"),
        ("rule", ["code"], "(code)"),
        ("model", ["ORG/name v2"], "(ORG/name v2)?"),
        ("region", ["eu"], "(eu)?"),
    ],
)
def test_only_labels_that_prometheus_adds_may_be_missing(name: str, values: list[str], pattern: str) -> None:
    assert matchers_of({name: values}) == [{"name": name, "value": pattern, "isRegex": True, "isEqual": True}]
    assert matchers_of({"region": [""], "model": []}) == []
