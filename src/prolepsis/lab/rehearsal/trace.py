"""Traces: our recordings, and the formats of Mooncake, Azure, BurstGPT, AIPerf and GuideLLM, without drafts.

A recording has times, lengths, numbers of blocks and drafts of requests, and no text.
"""

import csv
import gzip
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec

from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.requests import GenerateRequest, LatencyTarget, SpecMode
from prolepsis.core.stats import RequestStats
from prolepsis.engine.kv.pages import extend_hashes

FORMAT = "prolepsis-trace/1"
_MOONCAKE_BLOCK = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """What a recorded request took on the machine that served it, in seconds."""

    first_token_s: float  # from its arrival at the server; so is the next
    total_s: float
    num_steps: int  # passes that emitted its tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLine:
    """A request of a trace."""

    at: float  # seconds since the trace began
    prompt: int  # tokens; so is the next
    output: int
    blocks: tuple[int, ...] = ()  # as in `TracedRequest`
    scope: str = ""
    tenant: str = ""
    tier: str = "standard"
    route: str = ""
    structured: str = "none"
    tools: bool = False
    temperature: float = 1.0
    mode: SpecMode = "auto"  # what its caller asked of speculation
    target: LatencyTarget | None = None  # that it stated, or that its rule had
    measured: MeasuredTimes | None = None
    drafts: dict[str, tuple[RecordedDraft, ...]] = field(default_factory=dict)

    def facts(self) -> RequestFacts:
        """Return what policies see of it."""
        return RequestFacts(
            route=self.route,
            tenant=self.tenant,
            tier=self.tier,
            tools=self.tools,
            structured_output=self.structured,
            prompt_tokens=self.prompt,
            max_tokens=self.output,
            temperature=self.temperature,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of their arrival."""

    lines: tuple[TraceLine, ...]
    block_size: int = PAGE_SIZE
    machine: str = ""  # fingerprint of what served them; empty: not known
    at_once: int | None = None
    """A closed loop: so many are in the system, and the next is asked when one ends; None: each at its time."""

    def scaled(self, *, rate: float = 1.0, most: int | None = None) -> "Trace":
        """Return the trace with more requests a second, or only its first requests."""
        return replace(self, lines=tuple(replace(line, at=line.at / rate) for line in self.lines[:most]))

    def with_drafts_of(self, recording: "Trace", seed: int = 0) -> "Trace":
        """Return the trace with drafts for the requests that have none: each has all of one recorded request.

        Which one is drawn, among those with the same traffic class if there are any: drafts of one answer belong
        together. Raises `ConfigError` for a recording without drafts.
        """
        donors: dict[str, list[TraceLine]] = {}
        for line in recording.lines:
            if line.drafts:
                donors.setdefault(traffic_class_of(line.facts()), []).append(line)
        everyone = [line for lines in donors.values() for line in lines]
        if not everyone:
            raise ConfigError("the recording has no drafts; allowed: one made while speculation was on", param="drafts")
        chance = random.Random(seed)

        def given(line: TraceLine) -> TraceLine:
            among = donors.get(traffic_class_of(line.facts()), everyone)
            return line if line.drafts else replace(line, drafts=chance.choice(among).drafts)

        return replace(self, lines=tuple(given(line) for line in self.lines))


@dataclass(slots=True)
class BlockNumbers:
    """Numbers blocks in the order in which they come; equal numbers end equal texts of one scope."""

    _numbers: dict[bytes, int] = field(default_factory=dict)

    def of(self, tokens: Sequence[int], scope: str) -> tuple[int, ...]:
        """Return the number of each full block."""
        hashes: list[bytes] = []
        extend_hashes(hashes, tokens, PAGE_SIZE, scope, len(tokens) // PAGE_SIZE)
        return tuple(self._numbers.setdefault(digest, len(self._numbers)) for digest in hashes)

    def __len__(self) -> int:
        return len(self._numbers)


def trace_line(
    request: GenerateRequest, tokens: Sequence[int], stats: RequestStats, blocks: BlockNumbers, at: float
) -> TraceLine:
    """Return a request that ended with these tokens as its answer; `at` is its arrival in the trace."""
    whole, waited_s = [*request.prompt_token_ids, *tokens], stats.receive_s + stats.waited_s
    first_s = stats.first_token_s if stats.first_token_s is not None else stats.total_s
    return TraceLine(
        at=at,
        prompt=len(request.prompt_token_ids),
        output=len(tokens),
        blocks=blocks.of(whole, request.cache_salt),
        temperature=request.params.temperature,
        target=request.target,
        measured=MeasuredTimes(
            first_token_s=waited_s + first_s, total_s=waited_s + stats.total_s, num_steps=stats.num_steps
        ),
        drafts={name: tuple(drafts) for name, drafts in stats.drafts.items()},
    )


def read_trace(path: Path) -> Trace:
    """Return the trace of a file, whose first line says its format; raises `ConfigError` for any other."""
    try:
        with _opened(path) as file:
            first = file.readline()
            read, facts = _reader(first, path)
            lines = sorted(read(first, file), key=lambda line: line.at)
    except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is no trace: {error}", param="trace") from error
    return Trace(lines=tuple(replace(line, at=line.at - lines[0].at) for line in lines), **facts)


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace in our format; a name that ends with .gz is compressed."""
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(head_text(trace))
        for line in trace.lines:
            file.write(line_text(line))


def head_text(trace: Trace) -> str:
    """Return the first line of our format."""
    head = {name: getattr(trace, name) for name in ("block_size", "machine", "at_once")}
    return json.dumps({"format": FORMAT, **head}) + "\n"


def line_text(line: TraceLine) -> str:
    """Return a request as a line of our format."""
    return msgspec.json.encode(line).decode() + "\n"


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


_Read = Callable[[str, Iterable[str]], Iterable[TraceLine]]
"""Returns the requests of a file, by its first line and the rest."""


def _reader(first: str, path: Path) -> tuple[_Read, Mapping[str, Any]]:
    """Return what reads the requests, and the facts of the whole trace."""
    if first.strip() == "{" or '"benchmarks":' in first:  # one document
        return _guidellm, {}
    if first.startswith("{"):
        given = json.loads(first)
        if given.get("format") == FORMAT:
            block_size, machine = int(given["block_size"]), str(given["machine"])
            return _ours, {"block_size": block_size, "machine": machine, "at_once": given.get("at_once")}
        if "input_length" in given:
            return _mooncake, {"block_size": _MOONCAKE_BLOCK}
        if "metadata" in given:
            return _aiperf, {}
    columns = set(first.strip().split(","))
    for expected, read in _CSV.items():
        if columns.issuperset(expected):
            return read, {}
    known = f"a line with format {FORMAT}, of Mooncake or AIPerf, a report of GuideLLM, or columns of Azure or BurstGPT"
    raise ConfigError(f"{path} begins with {first[:80]!r}; allowed: {known}", param="trace")


def _ours(first: str, rest: Iterable[str]) -> Iterable[TraceLine]:
    return map(msgspec.json.Decoder(TraceLine).decode, rest)


def _mooncake(first: str, rest: Iterable[str]) -> Iterator[TraceLine]:
    for given in map(json.loads, (first, *rest)):
        at, hashes = given["timestamp"] / 1000.0, tuple(given.get("hash_ids", ()))
        yield TraceLine(at=at, prompt=given["input_length"], output=given["output_length"], blocks=hashes)


def _aiperf(first: str, rest: Iterable[str]) -> Iterator[TraceLine]:
    """Read the records of a run (`profile_export.jsonl`): lengths as the server told them, else as AIPerf counts."""
    for given in map(json.loads, (first, *rest)):
        if given.get("error"):
            continue
        sizes = {name: int(entry["value"]) for name, entry in given["metrics"].items() if entry.get("unit") == "tokens"}
        yield TraceLine(
            at=given["metadata"]["request_start_ns"] / 1e9,
            prompt=sizes.get("usage_prompt_tokens") or sizes["input_sequence_length"],
            output=sizes.get("usage_completion_tokens") or sizes["output_sequence_length"],
        )


def _guidellm(first: str, rest: Iterable[str]) -> Iterator[TraceLine]:
    """Read the requests of a report that were answered, of all its benchmarks."""
    for benchmark in json.loads("".join((first, *rest)))["benchmarks"]:
        for request in benchmark["requests"]["successful"]:
            at, prompt = request["request_start_time"], request["prompt_tokens"]
            yield TraceLine(at=at, prompt=prompt, output=request["output_tokens"])


def _azure(first: str, rest: Iterable[str]) -> Iterator[TraceLine]:
    for row in csv.DictReader((first, *rest)):
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        yield TraceLine(at=at, prompt=int(row["ContextTokens"]), output=max(1, int(row["GeneratedTokens"])))


def _burst_gpt(first: str, rest: Iterable[str]) -> Iterator[TraceLine]:
    for row in csv.DictReader((first, *rest)):
        if output := int(row["Response tokens"]):  # none: the request failed
            yield TraceLine(at=float(row["Timestamp"]), prompt=max(1, int(row["Request tokens"])), output=output)


_CSV: Mapping[tuple[str, ...], _Read] = {
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _azure,
    ("Timestamp", "Request tokens", "Response tokens"): _burst_gpt,
}
