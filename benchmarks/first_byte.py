"""How soon each dialect's stream begins while a long prompt is read, and how long it is silent at most.

Usage: prolepsis serve --port 8000
       python -m benchmarks.first_byte http://127.0.0.1:8000 [--tokens 7500] [--json OUT.json]

One stream at a time. Every prompt is new, so that nothing of it is cached, and has about `--tokens` tokens, at most
what the context holds. Seconds from the request: the status, the first byte, the first text; then the longest silence.
"""

import json
import os
import re
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx

from benchmarks.script import options
from prolepsis.lab.measure.provenance import provenance

WORD = " stone"
NUM_OUTPUT = 4
TEXT = re.compile(r'"(content|text|response|delta|thinking)":"[^"]')
"""Where a line shows text that a model wrote."""


def bodies(text: str, model: str) -> Mapping[str, dict[str, Any]]:
    """Return what each route is asked."""
    messages = [{"role": "user", "content": text}]
    return {
        "/v1/chat/completions": {"model": model, "messages": messages, "max_tokens": NUM_OUTPUT},
        "/v1/completions": {"model": model, "prompt": text, "max_tokens": NUM_OUTPUT},
        "/v1/responses": {"model": model, "input": text, "max_output_tokens": NUM_OUTPUT},
        "/v1/messages": {"model": model, "messages": messages, "max_tokens": NUM_OUTPUT},
        "/api/chat": {"model": model, "messages": messages, "options": {"num_predict": NUM_OUTPUT}},
        "/api/generate": {"model": model, "prompt": text, "options": {"num_predict": NUM_OUTPUT}},
        "/completion": {"prompt": text, "n_predict": NUM_OUTPUT, "return_progress": True},
    }


def measured(http: httpx.Client, path: str, body: Mapping[str, object]) -> dict[str, float | None]:
    """Return the times of one stream."""
    began, times = time.perf_counter(), list[float]()
    text_s: float | None = None
    with http.stream("POST", path, json={**body, "stream": True}) as reply:
        status_s = time.perf_counter() - began
        reply.raise_for_status()
        for part in reply.iter_text():
            times.append(time.perf_counter() - began)
            if text_s is None and TEXT.search(part):
                text_s = times[-1]
    silence_s = max(later - at for at, later in pairwise([0.0, *times]))
    return {"status_s": status_s, "first_byte_s": times[0], "first_text_s": text_s, "longest_silence_s": silence_s}


def main() -> None:
    args = options(__doc__, "url", tokens=7500)
    found: dict[str, object] = {}
    with httpx.Client(base_url=args.url, timeout=3600) as http:
        model = http.get("/v1/models").raise_for_status().json()["data"][0]
        most = min(args.tokens, model["max_model_len"] - 100)
        print(f"{model['id']}, prompts of about {most} tokens, load {os.getloadavg()[0]:.1f}")
        print(f"{'route':22} {'status':>8} {'byte':>8} {'text':>8} {'silence':>8}")
        for path in bodies("", ""):
            text = f"{uuid4()}{WORD * (most - 60)}"
            times = found[path] = measured(http, path, bodies(text, model["id"])[path])
            print(f"{path:22}", *("       –" if one is None else f"{one:8.2f}" for one in times.values()), flush=True)
    result = {"provenance": provenance({}, {}), "load": os.getloadavg()[0], "seconds": found}
    if args.json:
        args.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
