"""Does the largest input that a door allows keep others waiting? `/health/live` beside it, against alone.

Usage: python -m benchmarks.doors URL [--seconds 4] [--key KEY] [--other-key KEY] [--only DOOR ...] [--json OUT]

Another process sends a door's input again and again over two connections (--key, of a tenant with no other work), while
this one asks `/health/live`, and sends another tenant's short request (--other-key). Before each door both are measured
alone, so that the drift of the machine touches both. Figures: medians in milliseconds, and their ratio.
"""

import argparse
import gzip
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx

from benchmarks.stream_gaps import signed
from prolepsis.control.web.intake import body_limit
from prolepsis.lab.measure.provenance import provenance

Input = tuple[str, bytes, Mapping[str, str]]
"""Path, body, headers."""
MIB, TEXT = 2**20, "A short text about rivers, lakes and the sea. "
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


def posted(path: str, **body: object) -> Input:
    return path, json.dumps(body).encode(), {"content-type": "application/json"}


def upload(content: bytes, purpose: str = "batch") -> Input:
    field = '--b\r\nContent-Disposition: form-data; name="{}'
    form = f'{field.format("purpose")}"\r\n\r\n{purpose}\r\n{field.format("file")}"; filename="a"\r\n\r\n'.encode()
    return "/v1/files", form + content + b"\r\n--b--\r\n", {"content-type": "multipart/form-data; boundary=b"}


def line(model: str, size: int) -> bytes:
    """Return a line of a batch with so many bytes of empty lists as messages."""
    body = f'{{"model":"{model}","messages":[{"[]," * (size // 3)}[]]}}'
    return f'{{"custom_id":"1","method":"POST","url":"{BATCH["endpoint"]}","body":{body}}}'.encode()


def doors(model: str, most: int) -> Mapping[str, Input]:
    """Return the largest input of each door; `most`: bytes of a body."""
    members, long, users = most // 24 - 64, TEXT * (most // len(TEXT) - 20), [{"role": "user", "content": "a"}] * 2048
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(members // 4)}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    hi, words = {"model": model, "max_tokens": 1, "messages": users[:1]}, [f'"a{i}"' for i in range(most // 14)]
    chat, text, one = "/v1/chat/completions", "/v1/completions", {"model": model, "max_tokens": 1}
    return {
        "chat, text": posted(chat, **hi | {"messages": [{"role": "user", "content": long}]}),
        "chat, messages": posted(chat, **hi | {"messages": users}),
        "chat, empty lists": posted(chat, **hi | {"messages": [[]] * members}),
        "chat, unknown fields": posted(chat, **hi, **{f"x{i}": 1 for i in range(members)}),
        "chat, schema": posted(chat, **hi, response_format=form),
        "chat, grammar": posted(chat, **hi, structured_outputs={"grammar": f"root ::= {' | '.join(words)}"}),
        "text, logprobs": posted(text, **one | {"max_tokens": 16}, prompt="Hi", n=128, logprobs=20, ignore_eos=True),
        "text, prompt logprobs": posted(text, **one, prompt=TEXT * 700, prompt_logprobs=20),
        "text, gzip": (text, gzip.compress(b"0" * 200 * MIB), {"content-encoding": "gzip"}),
        "responses": posted("/v1/responses", model=model, max_output_tokens=16, input=users),
        "messages": posted("/v1/messages", **one, messages=users),
        "Ollama": posted("/api/chat", model=model, messages=users, stream=False, options={"num_predict": 1}),
        "llama.cpp": posted("/completion", prompt=long, n_predict=1),
        "decisions": posted("/v1/decisions", model=model, prompt=TEXT, candidates=[TEXT * 20] * 64),
        "tokenize": posted("/tokenize", model=model, prompt=long, return_token_strs=True),
        "detokenize": posted("/detokenize", model=model, tokens=[1] * (2 * members)),
        "file": upload(b"x" * 100 * MIB),
        "file, line breaks": upload(b"\r" * 40 * MIB),
        "corpus": upload(TEXT.encode() * (4 * MIB // len(TEXT)), "corpus"),
        "batch, line": upload(line(model, 15 * MIB)),
        "batch, first line": upload(line("not-served", MIB - 256)),
        "batch, line breaks": upload(line(model, 30) + b"\n" * 40 * MIB),
        "sign-in": (
            "/console/sign-in",
            b"key=" + b"%41" * (most // 3 - 9),
            {"content-type": "application/x-www-form-urlencoded"},
        ),
    }


def attack(url: str, key: str, given: Input, runs: bool) -> None:
    """Send an input until killed; a file is run as a batch, where it `runs`, and removed."""

    def work() -> None:
        with httpx.Client(base_url=url, headers=signed(key), timeout=600) as http:
            while True:
                with suppress(httpx.HTTPError, KeyError, ValueError):
                    file = http.post(given[0], content=given[1], headers=given[2]).json()["id"]
                    if given[0] == "/v1/files":
                        batch = http.post("/v1/batches", json={"input_file_id": file, **BATCH}).json() if runs else {}
                        time.sleep(2.0 if runs else 0.0)
                        http.post(f"/v1/batches/{batch.get('id')}/cancel")
                        http.delete(f"/v1/files/{file}")

    with ThreadPoolExecutor(2) as pool:
        [pool.submit(work) for _ in range(2)]


def waits(seconds: float, ask: Callable[[], object]) -> list[float]:
    """Return the milliseconds that each request took."""
    found, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        ask()
        found.append(1e3 * (time.perf_counter() - began))
        time.sleep(0.02)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--key", default="")
    parser.add_argument("--other-key", default="")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--json", type=Path)
    args, result = parser.parse_args(), {}
    with httpx.Client(base_url=args.url, timeout=600) as http, ThreadPoolExecutor(1) as pool:
        model = http.get("/v1/models", headers=signed(args.key)).json()["data"][0]["id"]
        context = http.get("/props", headers=signed(args.key)).json()["default_generation_settings"]["n_ctx"]
        short = {"model": model, "prompt": "Hi", "max_tokens": 4, "temperature": 0, "ignore_eos": True}

        def medians(seconds: float) -> list[float]:
            ask = partial(http.post, "/v1/completions", json=short, headers=signed(args.other_key))
            asking = pool.submit(waits, seconds, ask)
            return [
                statistics.median(one) for one in (waits(seconds, partial(http.get, "/health/live")), asking.result())
            ]

        for name, given in doors(model, body_limit(context)).items():
            if args.only and name not in args.only:
                continue
            alone = medians(args.seconds)
            process = multiprocessing.get_context("spawn").Process(
                target=attack, args=(args.url, args.key, given, name.startswith("batch"))
            )
            process.start()
            time.sleep(1.5)
            beside = medians(args.seconds)
            process.kill()
            process.join()
            result[name] = {
                "alone_ms": alone,
                "beside_ms": beside,
                "ratio": [b / a for a, b in zip(alone, beside, strict=True)],
            }
            shown = "  ".join(f"{a:8.1f}{b:8.1f}{b / a:6.1f}x" for a, b in zip(alone, beside, strict=True))
            print(f"{name:<24}{shown}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"provenance": provenance({}, {}), "doors": result}, indent=2))


if __name__ == "__main__":
    main()
