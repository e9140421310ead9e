"""Bodies as Claude Code sends them, written by hand from the API's public description."""

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "anthropic" / "claude_code.json"


def first_turn() -> dict[str, Any]:
    """Return the body of the first request of a session."""
    body: dict[str, Any] = json.loads(_FILE.read_text())["first"]
    return body


def second_turn() -> dict[str, Any]:
    """Return the one after it: it has the answer, results of its calls, and another line for billing."""
    body, more = first_turn(), json.loads(_FILE.read_text())["second"]
    body["system"][0]["text"] = body["system"][0]["text"].replace("cch=0e6d1", "cch=77a02")
    return {**body, "messages": [*body["messages"], *more]}
