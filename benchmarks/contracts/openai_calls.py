"""What becomes of 137 calls of openai-python, with edges on purpose?

Usage: python -m benchmarks.contracts.openai_calls URL [--model NAME] [--key KEY] [--only TEXT] [--json OUT]

A call works if the SDK returns what was asked for, warns if the server says in the header `warning` that something
has no effect, or ends with a status. Of each refused call the table says why the server must not take it: the answer
would be another. Exits 1 if fewer than 115 work or warn, more than 20 get a 400, more than 2 a 404, or a 400 is for
what would not change the answer.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import httpx2
import openai

from benchmarks.contracts.calls import CALLS, Call
from benchmarks.script import keep, options

LEAST_SERVED, MOST_REFUSED, MOST_MISSING = 115, 20, 2
ORDER = ("works", "warns", "400", "404", "other")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one call."""

    name: str
    kind: str
    detail: str
    changes: str
    """How the answer would change; empty if it would not."""


class Recorder:
    """Keeps the warnings of the replies that a client gets."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def note(self, response: httpx2.Response) -> None:
        if "warning" in response.headers:
            self.warnings.append(response.headers["warning"])


def outcome(call: Call, client: openai.OpenAI, model: str, recorder: Recorder) -> Outcome:
    """Make one call."""
    recorder.warnings.clear()
    try:
        result = call.run(client, model)
        assert call.holds(result), f"not what was asked for: {str(result)[:200]}"
    except openai.APIStatusError as error:
        known = str(error.status_code) if error.status_code in {400, 404} else "other"
        return Outcome(call.name, known, f"{error.status_code}: {error.message}"[:300], call.changes)
    except Exception as error:
        return Outcome(call.name, "other", f"{type(error).__name__}: {error}"[:300], call.changes)
    kind = "warns" if recorder.warnings else "works"
    return Outcome(call.name, kind, "; ".join(dict.fromkeys(recorder.warnings)), call.changes)


def show(outcomes: Sequence[Outcome]) -> bool:
    """Print the table; return whether the bar is reached."""
    for one in sorted(outcomes, key=lambda one: ORDER.index(one.kind)):
        if one.kind != "works":
            why = f"  [would change the answer: {one.changes}]" if one.changes else ""
            print(f"{one.kind:<6} {one.name:<44} {one.detail}{why}")
    counts = Counter(one.kind for one in outcomes)
    unfounded = [one.name for one in outcomes if one.kind == "400" and not one.changes]
    print(f"\n{len(outcomes)} calls: " + ", ".join(f"{kind} {counts[kind]}" for kind in ORDER))
    print(f"refused without need: {', '.join(unfounded) or 'none'}")
    enough = counts["works"] + counts["warns"] >= LEAST_SERVED
    return enough and counts["400"] <= MOST_REFUSED and counts["404"] <= MOST_MISSING and not unfounded


def main() -> None:
    args = options(__doc__, "url", model=str, key="none", only="")
    recorder = Recorder()
    http = openai.DefaultHttpxClient(event_hooks={"response": [recorder.note]}, timeout=120)
    client = openai.OpenAI(base_url=f"{args.url.rstrip('/')}/v1", api_key=args.key, max_retries=0, http_client=http)
    model = args.model or client.models.list().data[0].id
    outcomes = [outcome(call, client, model, recorder) for call in CALLS if args.only in call.name]
    reached = show(outcomes)
    keep(args, versions={"openai": openai.__version__}, model=model, calls=[asdict(one) for one in outcomes])
    sys.exit(not (reached or args.only))


if __name__ == "__main__":
    main()
