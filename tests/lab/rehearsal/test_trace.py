"""Traces of six formats."""

import gzip
import json
from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.lab.rehearsal.trace import MeasuredTimes, Trace, TraceLine, read_trace, write_trace


def test_a_recording_reads_as_it_was_written(tmp_path: Path) -> None:
    draft = RecordedDraft(0, 3, 4, (0, 1), (-1, 0), (0.5, 0.25), (2, 2), (0,))
    line = TraceLine(
        at=0.0,
        prompt=40,
        output=9,
        blocks=(4,),
        tenant="a",
        measured=MeasuredTimes(first_token_s=0.1, total_s=0.4, num_steps=3),
        drafts={"suffix": (draft, RecordedDraft(0, 5, 4))},
    )
    trace = Trace(lines=(line, TraceLine(at=1.5, prompt=1, output=1)), block_size=32, machine="m")
    for name in ("trace.jsonl", "trace.jsonl.gz"):
        write_trace(tmp_path / name, trace)
        assert read_trace(tmp_path / name) == trace


def test_mooncake_has_blocks_of_512_tokens(tmp_path: Path) -> None:
    file = tmp_path / "mooncake.jsonl"
    file.write_text(
        '{"timestamp": 3000, "input_length": 900, "output_length": 7, "hash_ids": [0, 5]}\n'
        '{"timestamp": 1000, "input_length": 600, "output_length": 3, "hash_ids": [0]}\n'
    )
    trace = read_trace(file)
    assert trace.block_size == 512
    assert [(line.at, line.prompt, line.output, line.blocks) for line in trace.lines] == [
        (0.0, 600, 3, (0,)),
        (2.0, 900, 7, (0, 5)),
    ]


def test_azure_and_burst_gpt_have_arrivals_and_lengths(tmp_path: Path) -> None:
    azure, burst = tmp_path / "azure.csv.gz", tmp_path / "burst.csv"
    with gzip.open(azure, "wt") as file:
        file.write(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.1805900,396,109\n"
        )
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n118,GPT-4,417,276,693,API log\n"
    )
    assert [(line.at, line.prompt, line.output) for line in read_trace(azure).lines] == [
        (0.0, 374, 44),
        (pytest.approx(3.5), 396, 109),
    ]
    assert [(line.at, line.output) for line in read_trace(burst).lines] == [(0.0, 18), (113.0, 276)]


def test_a_trace_is_scaled_in_rate_and_number() -> None:
    lines = tuple(TraceLine(at=2.0 * i, prompt=100, output=10, blocks=(1, 2, 3)) for i in range(4))
    scaled = Trace(lines=lines).scaled(rate=2.0, most=2)
    assert [(line.at, line.prompt, line.blocks) for line in scaled.lines] == [
        (0.0, 100, (1, 2, 3)),
        (1.0, 100, (1, 2, 3)),
    ]


@pytest.mark.parametrize("text", ["", "hello\n", '{"a": 1}\n', "a,b\n1,2\n", '{"format": "prolepsis-trace/1"}\n'])
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "some.file"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"some\.file"):
        read_trace(file)


def test_a_run_of_aiperf_is_read_without_what_failed(tmp_path: Path) -> None:
    def record(at_ns: int, **sizes: int) -> str:
        metrics = {name: {"value": value, "unit": "tokens"} for name, value in sizes.items()}
        waited = {"time_to_first_token": {"value": 12.5, "unit": "ms"}}
        return json.dumps({"metadata": {"request_start_ns": at_ns}, "metrics": {**metrics, **waited}}) + "\n"

    told = record(2_500_000_000, usage_prompt_tokens=94, usage_completion_tokens=24, input_sequence_length=64)
    counted = record(1_000_000_000, input_sequence_length=50, output_sequence_length=7)
    failed = json.dumps({"metadata": {"request_start_ns": 1}, "metrics": {}, "error": {"message": "503"}}) + "\n"
    (tmp_path / "profile_export.jsonl").write_text(told + failed + counted)
    lines = read_trace(tmp_path / "profile_export.jsonl").lines
    assert [(one.at, one.prompt, one.output) for one in lines] == [(0.0, 50, 7), (1.5, 94, 24)]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_report_of_guidellm_is_read_however_it_is_written(tmp_path: Path, indent: int | None) -> None:
    requests = [
        {"request_start_time": at, "prompt_tokens": 60, "output_tokens": output} for at, output in ((8.5, 9), (7.0, 4))
    ]
    failed = {"request_start_time": 6.0, "prompt_tokens": 60, "output_tokens": 0}
    report = {"metadata": {"version": 1}, "benchmarks": [{"requests": {"successful": requests, "errored": [failed]}}]}
    (tmp_path / "report.json").write_text(json.dumps(report, indent=indent))
    lines = read_trace(tmp_path / "report.json").lines
    assert [(one.at, one.prompt, one.output) for one in lines] == [(0.0, 60, 4), (1.5, 60, 9)]
