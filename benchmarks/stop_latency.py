"""How long until a stop that is set at one server stops the other? Both share a store.

Usage: python -m benchmarks.stop_latency URL OTHER_URL [--times 50] [--json OUT]

URL and OTHER_URL are of two servers on one store. A scope is stopped at the first by `PUT /admin/kill`, as `prolepsis
stop --url` does; the other is asked until it says that the scope is stopped, and then it is released. The figures
are from just before the first request to the reply of the other, so they hold one round trip to each.
"""

import random
import statistics
import time

import httpx2

from benchmarks.script import keep, options

SCOPE = "rule:stop-latency"
LONGEST_S = 10.0


def turned(here: httpx2.Client, there: httpx2.Client, *, on: bool) -> float:
    """Turn the scope at one server; return the seconds until the other follows."""
    began = time.monotonic()
    here.put("/admin/kill", json={"on": on, "scope": SCOPE, "reason": "measured"}).raise_for_status()
    while time.monotonic() - began < LONGEST_S:
        shared = there.get("/admin/kill").raise_for_status().json()["shared"]
        if (SCOPE in {one["scope"] for one in shared}) == on:
            return time.monotonic() - began
    raise SystemExit(f"the other did not follow within {LONGEST_S:g} s")


def main() -> None:
    """Measure and print."""
    arguments = options(__doc__, "url", "other", times=50)
    found: list[float] = []
    with httpx2.Client(base_url=arguments.url) as here, httpx2.Client(base_url=arguments.other) as there:
        for _ in range(arguments.times):
            found.append(turned(here, there, on=True))
            turned(here, there, on=False)
            time.sleep(random.random())  # polls come at other times of their period
    found_ms = [1000 * one for one in found]
    median, p95 = statistics.median(found_ms), statistics.quantiles(found_ms, n=20)[-1]
    print(f"median {median:.1f} ms, p95 {p95:.1f}, longest {max(found_ms):.1f}")
    keep(arguments, seconds=found)


if __name__ == "__main__":
    main()
