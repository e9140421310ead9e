"""Does the largest input that a door allows keep others waiting? `/health/live` beside it against alone.

Usage: python -m benchmarks.doors URL [--seconds 4] [--key KEY] [--other-key KEY] [--admin-key KEY] [--only NAME ...]

Another process sends the input of one door again and again over two connections (--key: a client's key, whose tenant
has no other work), while this one asks `/health/live` on a connection of its own; before each door it asks alone. So the
drift of the machine touches both. `--other-key`: another tenant's, whose short request is timed too. A door's input is
the largest that is taken, by bytes, by fields or by what it makes the server do; many of them are refused at the end.
"""

import argparse
import gzip
import http.client
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

from prolepsis.control.web.intake import body_limit

Input = tuple[str, str, bytes, str]
"""Method, path, body, content type."""
JSON, MIB = "application/json", 2**20
TEXT = "A short text about rivers, lakes and the sea. "


def posted(path: str, body: object, kind: str = JSON) -> Input:
    return "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), kind


def upload(content: bytes, purpose: str = "batch") -> Input:
    head = 'Content-Disposition: form-data; name="{}"'
    form = f"--b\r\n{head.format('purpose')}\r\n\r\n{purpose}\r\n--b\r\n{head.format('file')}; filename=\"a\"\r\n\r\n"
    return posted("/v1/files", form.encode() + content + b"\r\n--b--\r\n", "multipart/form-data; boundary=b")


def line(model: str, size: int, filler: bytes = b"[],") -> bytes:
    """Return a line of a batch with so many bytes of `filler` as messages."""
    body = b'{"model":"' + model.encode() + b'","messages":[' + filler * (size // len(filler)) + b"[]]}"
    return b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":' + body + b"}"


def doors(model: str, context: int) -> Mapping[str, Input]:
    """Return the largest input of each door."""
    most = body_limit(context)
    room, users, members = most - 512, [{"role": "user", "content": "a"}] * 2048, most // 24 - 64
    long, asks = (TEXT * (most // len(TEXT)))[:room], {"model": model, "max_tokens": 1}
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(members // 4)}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    deep: object = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    tools = [{"type": "function", "function": {"name": f"t{i}", "parameters": schema if i == 0 else {}}} for i in range(2)]
    chat, text = "/v1/chat/completions", "/v1/completions"
    hi = [{"role": "user", "content": "Hi"}]
    policy = {"text": "rules:\n" + "".join(f"  - {{name: r{i}, mode: 'on'}}\n" for i in range(9000))}
    answers = {"n": 128, "max_tokens": 16, "ignore_eos": True, "temperature": 1, "logprobs": 20}
    return {
        "chat, text": posted(chat, asks | {"messages": [{"role": "user", "content": long}]}),
        "chat, escapes": posted(chat, b'{"model":"%s","messages":[{"role":"user","content":"%s"}]}' % (model.encode(), b"\\u00e9" * (room // 6 - 20))),
        "chat, messages": posted(chat, asks | {"messages": users}),
        "chat, empty lists": posted(chat, asks | {"messages": [[]] * members}),
        "chat, unknown fields": posted(chat, asks | {"messages": hi, **{f"x{i}": 1 for i in range(members - 200)}}),
        "chat, tools": posted(chat, asks | {"messages": hi, "tools": tools}),
        "chat, schema": posted(chat, asks | {"messages": hi, "response_format": form}),
        "chat, deep schema": posted(chat, asks | {"messages": hi, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": deep}}}),
        "chat, regex": posted(chat, asks | {"messages": hi, "structured_outputs": {"regex": "(" + "|".join(f"a{i}b*" for i in range(room // 12)) + ")"}}),
        "chat, grammar": posted(chat, asks | {"messages": hi, "structured_outputs": {"grammar": "root ::= " + " | ".join(f'"a{i}"' for i in range(room // 14))}}),
        "chat, Lark": posted(chat, asks | {"messages": hi, "structured_outputs": {"grammar": "start: " + " | ".join(f'"a{i}"' for i in range(room // 14))}}),
        "chat, logprobs": posted(chat, {"model": model, "messages": hi, **answers, "logprobs": True, "top_logprobs": 20}),
        "text, logprobs": posted(text, {"model": model, "prompt": "Hi", **answers}),
        "text, prompt logprobs": posted(text, asks | {"prompt": TEXT * 700, "prompt_logprobs": 20}),
        "text, ids": posted(text, asks | {"prompt": [1] * min(2 * members, room // 3)}),
        "text, prompts": posted(text, asks | {"prompt": [TEXT] * 64}),
        "text, gzip": posted(text, gzip.compress(b"0" * 200 * MIB)),
        "responses": posted("/v1/responses", {"model": model, "max_output_tokens": 16, "input": users, "store": True}),
        "responses, count": posted("/v1/responses/input_tokens", {"model": model, "input": long}),
        "messages": posted("/v1/messages", asks | {"messages": users}),
        "messages, count": posted("/v1/messages/count_tokens", {"model": model, "messages": users}),
        "Ollama": posted("/api/chat", {"model": model, "messages": users, "stream": False, "options": {"num_predict": 1}}),
        "llama.cpp": posted("/completion", {"prompt": long, "n_predict": 1}),
        "infill": posted("/infill", {"input_prefix": long[: room // 2], "input_suffix": long[: room // 2], "n_predict": 1}),
        "template": posted("/apply-template", {"messages": users}),
        "decisions": posted("/v1/decisions", {"model": model, "prompt": TEXT, "candidates": [TEXT * 20] * 64}),
        "tokenize": posted("/tokenize", {"model": model, "prompt": long, "return_token_strs": True, "with_pieces": True}),
        "detokenize": posted("/detokenize", {"model": model, "tokens": [1] * (2 * members)}),
        "file": upload(b"x" * 100 * MIB),
        "file, line breaks": upload(b"\r" * 40 * MIB),
        "corpus": upload(TEXT.encode() * (4 * MIB // len(TEXT)), "corpus"),
        "corpus, no text": upload(TEXT.encode() * (2 * MIB // len(TEXT)) + b"\xff", "corpus"),
        "batch, line": upload(line(model, most - 100)),
        "batch, 16 MiB line": upload(line(model, 15 * MIB)),
        "batch, first line": upload(line("not-served", MIB - 256)),
        "batch, line breaks": upload(line(model, 30) + b"\n" * 40 * MIB),
        "batch, lines": upload(b"\n".join([line(model, 300).replace(b'"1"', b'"%d"' % i) for i in range(50_000)])),
        "sign-in": posted("/console/sign-in", b"key=" + b"%41" * (room // 3), "application/x-www-form-urlencoded"),
        "policy": posted("/admin/policy/check", policy),
        "explain": posted("/admin/policy/explain", policy | {"request": {"messages": users}}),
    }


class Client:
    """One connection."""

    def __init__(self, url: str, key: str) -> None:
        self._key, self._host = key, urlsplit(url).netloc
        self._http = http.client.HTTPConnection(self._host, timeout=600)

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = JSON) -> tuple[int, bytes]:
        headers = {"content-type": kind, **({"authorization": f"Bearer {self._key}"} if self._key else {})}
        if path == "/v1/completions" and body[:2] == b"\x1f\x8b":
            headers["content-encoding"] = "gzip"
        try:
            self._http.request(method, path, body, headers)
            reply = self._http.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException):
            self._http.close()
            return 0, b""


def attack(url: str, key: str, given: Input, name: str, statuses: "multiprocessing.Queue[int]") -> None:
    """Send the input again and again; a file is run as a batch, read and removed."""

    def work() -> None:
        client = Client(url, key)
        while True:
            status, reply = client.ask(*given)
            statuses.put(status)
            if given[1] == "/v1/files" and status == 200:
                file = json.loads(reply)["id"]
                if name.startswith("batch"):
                    body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
                    status, reply = client.ask(*posted("/v1/batches", body))
                    statuses.put(status)
                    time.sleep(2.0)
                    if status == 200:
                        client.ask("POST", f"/v1/batches/{json.loads(reply)['id']}/cancel")
                        time.sleep(1.0)
                elif name == "file":
                    client.ask("GET", f"/v1/files/{file}/content")
                client.ask("DELETE", f"/v1/files/{file}")

    for _ in range(2):
        threading.Thread(target=work).start()


def waits(seconds: float, ask: Callable[[], object], pause_s: float = 0.01) -> list[float]:
    """Return how long each request took, in milliseconds."""
    found, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        ask()
        found.append(1e3 * (time.perf_counter() - began))
        time.sleep(pause_s)
    return found


def shown(found: list[float]) -> tuple[float, float, float]:
    every = sorted(found)
    return statistics.median(every), every[int(0.95 * len(every))], every[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=4.0)
    for name in ("key", "other-key", "admin-key"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    client, other = Client(args.url, args.key), Client(args.url, args.other_key)
    model = json.loads(client.ask("GET", "/v1/models")[1])["data"][0]["id"]
    context = json.loads(client.ask("GET", "/props")[1])["default_generation_settings"]["n_ctx"]
    short = posted("/v1/completions", {"model": model, "prompt": "Hi", "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    context_ = multiprocessing.get_context("fork")
    print(f"{'door':<24}{'live alone':>24}{'beside':>27}{'ratio':>7}{'short alone':>14}{'beside':>8}{'ratio':>7}  statuses")
    for name, given in doors(model, context).items():
        if args.only and name not in args.only:
            continue
        live = lambda: client.ask("GET", "/health/live")
        ask = lambda: other.ask(*short)
        alone, quick = waits(args.seconds / 2, live), waits(args.seconds / 2, ask, 0.05)
        statuses: "multiprocessing.Queue[int]" = context_.Queue()
        key = args.admin_key if given[1].startswith("/admin") else args.key
        process = context_.Process(target=attack, args=(args.url, key, given, name, statuses))
        process.start()
        time.sleep(0.5)
        slow: list[float] = []
        thread = threading.Thread(target=lambda: slow.extend(waits(args.seconds, ask, 0.05)))
        thread.start()
        beside = waits(args.seconds, live)
        thread.join()
        process.kill()
        process.join()
        counted: dict[int, int] = {}
        while not statuses.empty():
            status = statuses.get()
            counted[status] = counted.get(status, 0) + 1
        a, b, c, d = shown(alone), shown(beside), shown(quick), shown(slow)
        print(
            f"{name:<24}{a[0]:8.1f}{a[1]:8.1f}{a[2]:8.1f}   {b[0]:8.1f}{b[1]:8.1f}{b[2]:8.1f}{b[0] / a[0]:7.1f}"
            f"{c[0]:14.1f}{d[0]:8.1f}{d[0] / c[0]:7.1f}  {counted}",
            flush=True,
        )
        time.sleep(2.0)


if __name__ == "__main__":
    main()
