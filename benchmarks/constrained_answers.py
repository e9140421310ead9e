"""Are tool calls and structured answers over HTTP valid, and the same however they are asked for?

Usage: python -m benchmarks.constrained_answers URL [--kinds required,named,parallel,schema] [--requests 200]
           [--at-once 16] [--max-tokens 160] [--ways off,auto,on,off-stream,auto-stream,on-stream] [--json OUT]
           [--schemas FOLDER [--seed 1]]

Kinds are calls of a tool of the model's choice, of a named one and of several, with generated parameters, and 55 JSON
schemas (`structured_schemas.py`). Each request is asked in every way: by mode of speculation, whole and streamed;
greedy and sampled in turns, with its own seed. An answer that ends by itself is checked with the jsonschema library;
one that was cut is counted and compared only. Exits 1 where an answer is invalid, failed or differs.

With --schemas the kind `schema` takes its schemas from the JSON files below FOLDER, such as a checkout of
github.com/guidance-ai/jsonschemabench: as many as there are requests, drawn by the seed. Those that the server refuses,
and answers that it gives up since they break their schema, are counted by the reason.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import referencing.exceptions

from benchmarks.structured_schemas import BY_PROMPT, Schema, generated
from prolepsis.lab.bench.provenance import provenance
from prolepsis.server.cli.ask import in_flight

WAYS = ("off", "auto", "always", "off-stream", "auto-stream", "always-stream")
NUM_GENERATED = 50
WAIT_S = 3600
KINDS = ("required", "named", "parallel", "schema")
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A request in all but its way of asking, and what its answer must fit."""

    kind: str
    body: Body
    schemas: Mapping[str, Schema]
    """By the name of the function; under "" that of the answer itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client makes of a reply."""

    content: str
    calls: Sequence[tuple[str, str]]
    finish: str

    def fault(self, task: Task) -> str | None:
        """Return why the answer is not what was asked for."""
        wanted = [("", self.content)] if "" in task.schemas else self.calls
        if not wanted:
            return "no call"
        if task.kind == "named" and len(wanted) > 1:
            return "several calls"
        try:
            for name, text in wanted:
                jsonschema.validate(json.loads(text), task.schemas[name])
        except (KeyError, ValueError, jsonschema.ValidationError, referencing.exceptions.Unresolvable) as error:
            return str(error).partition("\n")[0]
        return None


@dataclass(slots=True)
class Counts:
    """Answers of one kind."""

    requests: int = 0
    valid: int = 0
    cut: int = 0
    """By max_tokens, in every way."""
    several_calls: int = 0
    refused: list[str] = field(default_factory=list)
    """With status 400 before the answer."""
    given_up: list[str] = field(default_factory=list)
    """Ended as `grammar_failed`."""
    invalid: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


def schemas_of(folder: Path | None, num_drawn: int, seed: int) -> list[tuple[str, Schema]]:
    """Return the schemas of the kind `schema` with their names: our own, or drawn from the files below a folder."""
    if folder is None:
        own = [*BY_PROMPT.values(), *map(generated, range(NUM_GENERATED))]
        return [(str(number), schema) for number, schema in enumerate(own)]
    files = random.Random(seed).sample(sorted(folder.rglob("*.json")), num_drawn)
    return [(f"{file.parent.name}/{file.name}", json.loads(file.read_text())) for file in files]


def task(kind: str, number: int, max_tokens: int, schemas: Sequence[tuple[str, Schema]]) -> Task:
    """Return the request of one number; each kind goes through its schemas in turn."""
    body: Body = {"max_tokens": max_tokens, "seed": number, "temperature": 0.0 if number % 2 else 0.8}
    if kind == "schema":
        _, schema = schemas[number % len(schemas)]
        form = {"type": "json_schema", "json_schema": {"name": "example", "schema": schema}}
        text = "Make up a short example that fits the schema. Answer with JSON only."
        return Task(kind, {**body, "messages": _user(text), "response_format": form}, {"": schema})
    functions = {f"make_{name}": generated(number * 2 + i) for i, name in enumerate(("record", "entry"))}
    choice: object = {"type": "function", "function": {"name": "make_entry"}} if kind == "named" else "required"
    text = "Make one short record and one short entry." if kind == "parallel" else "Make a short entry."
    more = {"tools": [_tool(*one) for one in functions.items()], "tool_choice": choice}
    return Task(kind, {**body, **more, "messages": _user(text), "parallel_tool_calls": kind == "parallel"}, functions)


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _tool(name: str, parameters: Schema) -> Body:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


async def ask(http: httpx.AsyncClient, one: Task, way: str) -> Answer:
    """Return the answer; the finish reason of a request without one is "refused", "given up" or "failed"."""
    mode, _, stream = way.partition("-")
    body = {**one.body, "stream": bool(stream), "speculation": {"mode": mode}}
    reply = await http.post("/v1/chat/completions", json=body)
    if reply.status_code != httpx.codes.OK:
        is_refused = reply.status_code == httpx.codes.BAD_REQUEST
        return _without_answer(reply.json()["error"]) if is_refused else Answer(reply.text[:200], (), "failed")
    if stream:
        return _joined([json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")])
    choice = reply.json()["choices"][0]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls") or ()]
    return Answer(choice["message"].get("content") or "", calls, choice["finish_reason"])


def _without_answer(error: Body) -> Answer:
    return Answer(error["message"], (), "given up" if error["code"] == "grammar_failed" else "refused")


def _joined(chunks: Sequence[Body]) -> Answer:
    content, finish, calls = "", "failed", list[tuple[str, str]]()
    for chunk in chunks:
        if "error" in chunk:
            return _without_answer(chunk["error"])
        for choice in chunk.get("choices", ()):
            content += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
            for call in choice["delta"].get("tool_calls") or ():
                if call["index"] == len(calls):
                    calls.append((call["function"]["name"], ""))
                name, arguments = calls[-1]
                calls[-1] = (name, arguments + (call["function"].get("arguments") or ""))
    return Answer(content, calls, finish)


async def measure(url: str, options: argparse.Namespace) -> dict[str, Counts]:
    """Return the counts by kind; the ways of a request are asked one after the other."""
    kinds, ways = options.kinds.split(","), options.ways.split(",")
    counts = {kind: Counts() for kind in kinds}
    schemas = schemas_of(options.schemas, options.requests, options.seed)
    limits = httpx.Limits(max_connections=options.at_once)
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S, limits=limits) as http:
        model = (await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]

        async def one(kind: str, number: int) -> None:
            asked = task(kind, number, options.max_tokens, schemas)
            asked.body["model"] = model
            name = schemas[number % len(schemas)][0] if kind == "schema" else str(number)
            count(counts[kind], f"{kind} {name}", asked, {way: await ask(http, asked, way) for way in ways})
            print(f"{kind} {number} {json.dumps({k: _brief(v) for k, v in counts.items()})}", file=sys.stderr)

        jobs = [(kind, number) for number in range(options.requests) for kind in kinds]
        await in_flight([lambda job=job: one(*job) for job in jobs], options.at_once)  # type: ignore[misc]
    return counts


def count(counts: Counts, name: str, asked: Task, answers: Mapping[str, Answer]) -> None:
    """Add the answers to one request."""
    first, *others = answers.items()
    counts.requests += 1
    counts.different += [f"{name}: {first[0]} and {way}" for way, answer in others if answer != first[1]]
    for way, answer in answers.items():
        if answer.finish in ("length", "refused", "given up"):
            continue
        fault = answer.content if answer.finish == "failed" else answer.fault(asked)
        counts.invalid += [f"{name} {way}: {fault}"] if fault else []
    counts.cut += first[1].finish == "length"
    counts.refused += [f"{name}: {first[1].content}"] if first[1].finish == "refused" else []
    counts.given_up += [f"{name}: {first[1].content}"] if first[1].finish == "given up" else []
    counts.valid += first[1].finish in ("stop", "tool_calls") and first[1].fault(asked) is None
    counts.several_calls += len(first[1].calls) > 1


def _brief(counts: Counts) -> Mapping[str, int]:
    ends = {"refused": len(counts.refused), "given_up": len(counts.given_up)}
    faults = {**ends, "invalid": len(counts.invalid), "different": len(counts.different)}
    return {"requests": counts.requests, "valid": counts.valid, "cut": counts.cut, **faults}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--requests", type=int, default=200, help="of each kind")
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--schemas", type=Path, help="a folder of JSON schemas")
    parser.add_argument("--seed", type=int, default=1, help="draws the schemas")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begun = time.monotonic()
    counts = asyncio.run(measure(options.url, options))
    found = {kind: asdict(one) for kind, one in counts.items()}
    print(json.dumps({"seconds": round(time.monotonic() - begun), "counts": found}, indent=2))
    if options.json:
        options.json.write_text(json.dumps({"provenance": provenance({}, {}), "counts": found}, indent=2))
    bad = Counter({kind: len(one.invalid) + len(one.different) for kind, one in counts.items()})
    raise SystemExit(1 if bad.total() else 0)


if __name__ == "__main__":
    main()
