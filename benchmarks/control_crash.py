"""What is lost when a server under load is killed: request records and audit entries that it had called written.

Usage: python -m benchmarks.control_crash [--repeats 3] [--store URL] [--seconds 4] [--json OUT]

`prolepsis serve` with the default model, every request in the audit log, 8 requests at once. Readiness says all along
what is written and what was dropped; then kill -9. Lost is what was called written and is not in the database, or does
not verify. `waiting` are answers that clients had and the database has not: they stood in the queue, neither called
written nor counted as dropped. Without --store each repeat has a SQLite file of its own.
"""

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from prolepsis.lab.bench.provenance import provenance
from tests.commands import prolepsis
from tests.simulation.crash import killed_under_load
from tests.simulation.rollouts import shown

SERVE = prolepsis("serve", "--audit-sample", "1", "--replay-sample", "0", "--log-level", "error")


def server(setting: str, port: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*SERVE, "--store", setting, "--port", str(port)])  # noqa: S603 - our own command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--store", help="a database whose schema is there already, instead of files")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, list[int]] = {}
    with TemporaryDirectory() as folder:
        for i in range(args.repeats):
            setting = args.store or f"sqlite:///{folder}/{i}.sqlite"
            for name, value in killed_under_load(partial(server, setting), setting, args.seconds).items():
                found.setdefault(name, []).append(value)
    for name, figures in found.items():
        print(f"{name:<22} {shown(figures)}")
    if args.json:
        args.json.write_text(json.dumps({"provenance": provenance({}, {}), "figures": found}, indent=2))
    sys.exit(any(map(sum, (found[name] for name in ("records_lost", "entries_lost", "faults_of_the_chain")))))


if __name__ == "__main__":
    main()
