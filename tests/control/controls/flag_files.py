"""Flag files as operators write them."""

import json
from pathlib import Path
from typing import Any


def flag(targeting: object = None, *, default: object = "on", state: str = "ENABLED", **more: object) -> dict[str, Any]:
    made = {"state": state, "variants": {"on": True, "off": False}, "defaultVariant": default, **more}
    return made if targeting is None else made | {"targeting": targeting}


def write(path: Path, enabled: object = None, kill: object = None, **more: Any) -> Path:
    """Replace the file by one with these flags, None: not there, and those of `also`; the rest is beside the flags."""
    flags = {"speculation.enabled": enabled, "speculation.kill": kill}
    text: dict[str, Any] = {
        "$schema": "https://flagd.dev/schema/v0/flags.json",
        "flags": {k: v for k, v in flags.items() if v},
    }
    text["flags"] |= more.pop("also", {})
    text |= more
    other = path.with_suffix(".new")
    other.write_text(json.dumps(text))
    other.replace(path)
    return path
