"""Traces: our recordings, and the formats of Mooncake, Azure, BurstGPT, AIPerf and GuideLLM, without drafts."""

import csv
import gzip
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec

from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.requests import SpecMode

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


def read_trace(path: Path) -> Trace:
    """Return the trace of a file, whose first line says its format; raises `ConfigError` for any other."""
    try:
        with _opened(path) as file:
            first = file.readline()
            read = _reader(first, path)
            return read(first, file)
    except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is no trace: {error}", param="trace") from error


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


_Read = Callable[[str, Iterable[str]], Trace]


def _reader(first: str, path: Path) -> _Read:
    if first.strip() == "{" or '"benchmarks":' in first:  # one document
        return _guidellm
    if first.startswith("{"):
        given = json.loads(first)
        if given.get("format") == FORMAT:
            return _ours
        if "input_length" in given:
            return _mooncake
        if "metadata" in given:
            return _aiperf
    columns = tuple(first.strip().split(","))
    for expected, read in _CSV.items():
        if set(expected) <= set(columns):
            return read
    known = f"a line with format {FORMAT}, of Mooncake or AIPerf, a report of GuideLLM, or columns of Azure or BurstGPT"
    raise ConfigError(f"{path} begins with {first[:80]!r}; allowed: {known}", param="trace")


def _ours(first: str, rest: Iterable[str]) -> Trace:
    head = json.loads(first)
    decode = msgspec.json.Decoder(TraceLine).decode
    return Trace(
        lines=_in_order(decode(line) for line in rest),
        block_size=int(head["block_size"]),
        machine=str(head["machine"]),
        at_once=head.get("at_once"),
    )


def _mooncake(first: str, rest: Iterable[str]) -> Trace:
    def line(text: str) -> TraceLine:
        given = json.loads(text)
        hashes = tuple(given.get("hash_ids", ()))
        return TraceLine(
            at=given["timestamp"] / 1000.0, prompt=given["input_length"], output=given["output_length"], blocks=hashes
        )

    return Trace(lines=_in_order(line(text) for text in (first, *rest)), block_size=_MOONCAKE_BLOCK)


def _aiperf(first: str, rest: Iterable[str]) -> Trace:
    """Read the records of a run (`profile_export.jsonl`): lengths as the server told them, else as AIPerf counts."""

    def line(text: str) -> TraceLine:
        given = json.loads(text)
        sizes = {name: int(entry["value"]) for name, entry in given["metrics"].items() if entry.get("unit") == "tokens"}
        return TraceLine(
            at=given["metadata"]["request_start_ns"] / 1e9,
            prompt=sizes.get("usage_prompt_tokens") or sizes["input_sequence_length"],
            output=sizes.get("usage_completion_tokens") or sizes["output_sequence_length"],
        )

    begun = (text for text in (first, *rest) if not json.loads(text).get("error"))
    return Trace(lines=_in_order(line(text) for text in begun))


def _guidellm(first: str, rest: Iterable[str]) -> Trace:
    """Read the requests of a report that were answered, of all its benchmarks."""
    report = json.loads("".join((first, *rest)))
    lines = (
        TraceLine(at=request["request_start_time"], prompt=request["prompt_tokens"], output=request["output_tokens"])
        for benchmark in report["benchmarks"]
        for request in benchmark["requests"]["successful"]
    )
    return Trace(lines=_in_order(lines))


def _azure(first: str, rest: Iterable[str]) -> Trace:
    def line(row: Mapping[str, str]) -> TraceLine:
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        return TraceLine(at=at, prompt=int(row["ContextTokens"]), output=max(1, int(row["GeneratedTokens"])))

    return Trace(lines=_in_order(line(row) for row in _rows(first, rest)))


def _burst_gpt(first: str, rest: Iterable[str]) -> Trace:
    def line(row: Mapping[str, str]) -> TraceLine:
        at, output = float(row["Timestamp"]), int(row["Response tokens"])
        return TraceLine(at=at, prompt=max(1, int(row["Request tokens"])), output=output)

    lines = (line(row) for row in _rows(first, rest))
    return Trace(lines=_in_order(entry for entry in lines if entry.output))  # none: the request failed


def _rows(first: str, rest: Iterable[str]) -> Iterator[Mapping[str, str]]:
    return csv.DictReader((first, *rest))


def _in_order(lines: Iterable[TraceLine]) -> tuple[TraceLine, ...]:
    """Return lines in order of arrival, the first at 0."""
    ordered = sorted(lines, key=lambda line: line.at)
    return tuple(replace(line, at=line.at - ordered[0].at) for line in ordered)


_CSV: Mapping[tuple[str, ...], _Read] = {
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _azure,
    ("Timestamp", "Request tokens", "Response tokens"): _burst_gpt,
}
