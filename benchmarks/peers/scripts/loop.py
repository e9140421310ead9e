"""Serves one peer over JSON lines on stdin and stdout. Run by the peer's own Python: `python loop.py KIND`.

Requests: {"op": "load", ...options}, {"op": "begin"}, {"op": "run", "prompts": [[id, ...], ...], "max_tokens": n,
"concurrency": n}. Answers: {"ok": true, ...} or {"error": "..."}. The end of stdin ends the process.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any


def main() -> None:
    """Answer requests until stdin ends."""
    _die_with_parent()
    answers = _take_stdout()
    peer: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["op"] == "load":
                peer = importlib.import_module(f"{sys.argv[1]}_peer").Peer(request)
                answer = {"ok": True, "versions": peer.versions}
            elif request["op"] == "begin":
                peer.begin()
                answer = {"ok": True}
            else:
                answer = {"ok": True, "outcomes": peer.run(**{k: v for k, v in request.items() if k != "op"})}
        except Exception as error:  # whatever a peer's libraries raise is told to the other side
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _die_with_parent() -> None:
    """Ask Linux for the end of this process with its parent's: a stopped process would not see its stdin end."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _take_stdout() -> Any:
    """Keep the real stdout for answers; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    main()
