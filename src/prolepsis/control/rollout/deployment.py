"""The deployment that a server belongs to: the servers that share a store, and the labels of their alerts."""

import re
import socket
import time
from collections.abc import Collection, Mapping
from uuid import uuid4

from prolepsis.control.store.controls import Control, ControlTable, control_key

_KEY = control_key("deployment", "id")
_ADDED = frozenset({"model", "region"})
"""Labels that no rule of ours gives an alert: Prometheus adds them to all of its own, or to none."""


def deployment_id(table: ControlTable) -> str:
    """Return the name of the deployment in its store, made by the first server that asks; raises `StoreUnavailable`."""
    found = table.read().get(_KEY)
    if found is None:
        first_wins = -time.time()  # of two that make one at once, the earlier has the larger number
        found = table.exchange({_KEY: Control(uuid4().hex[:12], first_wins)})[_KEY]
    assert found.value is not None, "nothing removes it"
    return found.value


def instances_of(addresses: Collection[str]) -> list[str]:
    """Return what Prometheus may call servers at these URLs: HOST:PORT, of this machine by its other names too."""
    found: set[str] = set()
    for address in addresses:
        host, _, port = address.partition("://")[2].rpartition(":")
        hosts = {host.strip("[]")}
        if host == socket.gethostname():
            hosts |= {"127.0.0.1", "localhost", socket.getfqdn(), *_numbers(host)}
        found |= {f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts}
    return sorted(found)


def _numbers(host: str) -> set[str]:
    try:
        return {str(one[4][0]) for one in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def matchers_of(labels: Mapping[str, Collection[str]]) -> list[dict[str, object]]:
    """Return Alertmanager's matchers of alerts that have one of these values in each label.

    A label without a value is not matched: Prometheus may add one of its own. Those of `_ADDED` may also be missing.
    """
    return [
        {
            "name": name,
            "value": f"({'|'.join(map(_quoted, sorted(values)))}){'?' if name in _ADDED else ''}",
            "isRegex": True,
            "isEqual": True,
        }
        for name, values in labels.items()
        if any(values)
    ]


def _quoted(value: str) -> str:
    """Quote a value for RE2, which refuses the quotes of some characters that Python quotes."""
    return re.sub(r"([.+*?()|\[\]{}^$\\])", r"\\\1", value)
