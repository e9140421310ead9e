"""What all scripts have: options, and a file of JSON with figures and where they come from."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prolepsis.lab.measure.provenance import provenance


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
