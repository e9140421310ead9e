"""What scripts have in common: options, a server of ours, and a file of JSON with figures and where they come from."""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prolepsis.lab.measure.provenance import provenance
from tests.commands import free_port, prolepsis, serving

LOAD_S = 120.0


def options(usage: str | None, *positional: str, **defaults: Any) -> argparse.Namespace:
    """Read the options of a script, `--json FILE` among them.

    `positional`: names, the last with a + or * if there may be several. A default gives the type of its option: False
    is a flag, a list takes several values, and a type stands for an option without a default.
    """
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in positional:
        nargs = name[-1] if name[-1] in "+*" else None
        parser.add_argument(name.rstrip("+*"), nargs=nargs)
    for name, default in {**defaults, "json": Path}.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        elif isinstance(default, list | tuple):
            parser.add_argument(flag, nargs="*", type=type(default[0]) if default else str, default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args()


def keep(
    args: argparse.Namespace,
    *,
    seeds: Mapping[str, int] | None = None,
    versions: Mapping[str, str] | None = None,
    **figures: object,
) -> None:
    """Write figures with their provenance to the file that `--json` names, if it does."""
    if args.json is not None:
        found = {"provenance": provenance(seeds or {}, versions or {}), **figures}
        args.json.write_text(json.dumps(found, indent=2) + "\n")


@contextmanager
def served(*options: str) -> Iterator[str]:
    """Run a server without a store; yield its URL once it is ready."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = prolepsis("serve", "--port", str(port), "--store", "none", *options)
    with (
        tempfile.NamedTemporaryFile() as log,
        serving(command, f"{url}/health/ready", Path(log.name), wait_s=LOAD_S),
    ):
        yield url


def signed(key: str) -> dict[str, str]:
    """Return the headers of a client with this key; empty: it has none."""
    return {"authorization": f"Bearer {key}"} if key else {}
