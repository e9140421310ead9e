"""The sentence that a measurement ends with: a figure with machine and model, or why there is none."""

import json
import re
import shlex
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from prolepsis.core.errors import ConfigError
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.terminal.output import BAD_INPUT, FAILED, OK
from prolepsis.lab.bench import BenchJob, run_bench
from prolepsis.lab.measure.contenders import Outcome, Run, Schedule
from prolepsis.lab.measure.gates import judged, parse_gates, quote
from prolepsis.lab.measure.prompts import EncodedPrompt, encode_prompts, load_prompts
from prolepsis.lab.measure.report import Figures, Setting, print_report, print_sentence
from prolepsis.server.cli.main import app
from tests.lab.measure.fakes import INFO, ByteTokenizer, table_client, tokens_of, two_prompts, write_prompts
from tests.paths import ROOT

HARDWARE: dict[str, object] = {"processor": "Zen 9", "cores": 2}
PROMPTS = (EncodedPrompt("p1", "code", (1, 2)), EncodedPrompt("p2", "chat", (3,)))
STRAIGHT, LOOP = tuple(range(60)), (1, 2, 3) * 20
TEXTS = {"p1": STRAIGHT, "p2": STRAIGHT[::-1]}


def run(name: str, seconds: Sequence[float], repeat: int, *, texts: Any = TEXTS, at_once: int = 1) -> Run:
    steps = 60 if name == "plain" else 40
    outcomes = [
        Outcome(prompt, "chat", tokens, took, num_steps=steps)
        for (prompt, tokens), took in zip(texts.items(), seconds, strict=True)
    ]
    return Run(name, at_once, repeat, wall_s=sum(seconds), outcomes=outcomes)


def setting(arms: tuple[str, ...] = ("plain", "auto"), *, at_once: int = 1, **params: Any) -> Setting:
    given = SamplingParams(**{"temperature": 0.0, "max_tokens": 60, **params})
    return Setting("/somewhere/set.jsonl", PROMPTS, Schedule((at_once,), 2), given, arms)


def both(**options: Any) -> Figures:
    """Each prompt takes a second; with drafts two thirds of one and then a half, or 60 to 120 tokens a second."""
    plain = [run("plain", (1.0, 1.0), repeat, **options) for repeat in (0, 1)]
    return Figures([*plain, run("auto", (0.5, 0.5), 0, **options), run("auto", (0.625, 0.625), 1, **options)])


def said(figures: Figures, given: Setting | None = None) -> str:
    return quote(figures, given or setting(), INFO, HARDWARE)


def test_the_sentence_has_machine_model_figure_spread_and_equality() -> None:
    assert said(both()) == (
        "fake on 2 cores of Zen 9, one at a time, greedy: `auto` emits 1.80x (1.60 to 2.00) of plain tokens/s, 1.50 "
        "tokens a pass, 2 of 2 answers as plain (2 prompts of set.jsonl, to 60 tokens each; median and range of 2 "
        "repeats)."
    )


def test_above_one_at_once_it_has_no_tokens_a_step() -> None:
    text = said(both(at_once=4), setting(at_once=4, temperature=0.8))
    assert text.startswith("fake on 2 cores of Zen 9, 4 at once, temperature 0.8: `auto` emits 1.80x (1.60 to 2.00) of")
    assert "tokens a pass" not in text


def test_without_an_arm_that_speculates_it_is_about_plain_decoding() -> None:
    figures = Figures([run("plain", (1.0, 1.0), 0), run("plain", (0.5, 0.5), 1)])
    assert "plain decoding emits 90.0 (60.0 to 120.0) tokens/s, 2 of 2" in said(figures, setting(("plain",)))


def test_answers_that_loop_are_left_out_of_the_speed_and_said_to_be() -> None:
    texts = {"p1": STRAIGHT, "p2": LOOP}
    runs = [run("plain", (1.0, 1.0), 0, texts=texts), run("auto", (0.5, 0.1), 0, texts=texts)]
    text = said(Figures(runs))
    assert "emits 2.00x (2.00 to 2.00)" in text
    assert "2 prompts of set.jsonl, 1 of them looping and left out of the speed, to" in text


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (setting(ignore_eos=True), "ends of answers were ignored"),
        (replace(setting(), prompts=(PROMPTS[0], replace(PROMPTS[1], is_synthetic=True))), "declared synthetic"),
        (replace(setting(), prompts=(PROMPTS[0], replace(PROMPTS[0], id="p2"))), "the prompts p1, p2 are the same"),
    ],
)
def test_what_says_nothing_about_real_answers_has_no_figure(given: Setting, reason: str) -> None:
    text = said(both(), given)
    assert text.startswith("No figure to quote: ")
    assert reason in text
    assert "x (" not in text


def test_where_every_answer_loops_there_is_no_figure() -> None:
    texts = {"p1": LOOP, "p2": LOOP}
    assert "all answers end in a loop" in said(Figures([run("plain", (1.0, 1.0), 0, texts=texts)]))


def test_a_prompt_says_that_it_is_synthetic(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    record: dict[str, object] = {"id": "p1", "category": "code", "prompt": "x y z"}
    file.write_text("".join(f"{json.dumps(record | {'id': str(flag), 'synthetic': flag})}\n" for flag in (True, False)))
    assert [one.is_synthetic for one in encode_prompts(load_prompts(file), ByteTokenizer())] == [True, False]
    file.write_text(json.dumps(record | {"synthetic": "yes"}))
    with pytest.raises(ConfigError, match="'yes' under 'synthetic'; allowed: true, false"):
        load_prompts(file)


async def test_a_measurement_counts_tokens_and_ends_with_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Speculation brings three tokens an event: events would say that it is a third as fast as it is."""
    job = BenchJob("file", two_prompts(), "auto", Schedule((1,), 1), SamplingParams(temperature=0.0, max_tokens=6))
    report: Any = await run_bench(job, table_client(), ByteTokenizer(), notify=lambda line: None)
    print_report(report)
    print_sentence(report)
    assert capsys.readouterr().out.rstrip().endswith(report["sentence"])
    assert "fake on " in report["sentence"]
    assert "3.00 tokens a pass, 2 of 2 answers as plain" in report["sentence"]
    [ratio] = report["arms"]["auto"]["all"]["speedup"]["repeats"]
    assert ratio > 1.5
    assert f"{ratio:.2f}x" in report["sentence"]


def test_with_synthetic_drafts_there_is_none() -> None:
    info = replace(INFO, proposers=("synthetic",))
    assert quote(both(), setting(), info, HARDWARE) == "No figure to quote: the drafts are synthetic."


JOB = BenchJob("file", two_prompts(), "auto", Schedule((1, 2), 2), SamplingParams(temperature=0.0, max_tokens=6))


async def results(gates: str, **client: Any) -> dict[tuple[str, str], tuple[float | None, bool]]:
    """Return value and outcome by gate and concurrency."""
    report = await run_bench(JOB, table_client(**client), ByteTokenizer(), notify=lambda line: None)
    found = judged(parse_gates(gates), json.loads(json.dumps(report)))
    return {(one["gate"], one["concurrency"]): (one["value"], one["passed"]) for one in found}


async def test_each_gate_is_judged_by_what_was_measured_at_each_concurrency() -> None:
    found = await results("acceptance>=0.9,tokens_a_pass>=2.9,tokens_a_pass>=3.1,speedup>=1.5,p95_ms<=1,exact")
    assert found.keys() == {(gate, level) for gate, level in found if level in ("1", "2")}
    assert len(found) == 12
    for level in ("1", "2"):
        assert found["acceptance>=0.9", level] == (1.0, True)
        assert found["tokens_a_pass>=2.9", level] == (3.0, True)
        assert found["tokens_a_pass>=3.1", level] == (3.0, False)
        assert found["speedup>=1.5", level][1]
        assert found["exact", level] == (1.0, True)
        value, passed = found["p95_ms<=1", level]
        assert value is not None
        assert value > 1.0
        assert not passed, "a request takes 10 ms"


async def test_one_answer_with_other_tokens_misses_exact() -> None:
    def altered(request: GenerateRequest, speculating: bool) -> list[int]:
        tokens = tokens_of(request, speculating)
        return [*tokens[:-1], 255] if speculating and len(request.prompt_token_ids) > 5 else tokens

    assert await results("exact", alter=altered) == {("exact", "1"): (0.5, False), ("exact", "2"): (0.5, False)}


def test_a_figure_that_was_not_measured_misses_its_gate() -> None:
    report = {
        "concurrency": {"1": {"arms": {"plain": {}, "auto": {"acceptance": {"median": None}}}}},
        "outputs": {"auto": {"concurrency": {"1": {"num_prompts": 2, "num_different": 0}}}},
    }
    [found] = judged(parse_gates("acceptance>=0"), report)
    assert (found["value"], found["passed"]) == (None, False)


@pytest.mark.parametrize("text", ["speed>=1", "speedup", "speedup>1", "speedup>=fast", "exact>=1", "acceptance>=60%"])
def test_an_unknown_gate_is_answered_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match="allowed: exact, or one of acceptance, speedup, tokens_a_pass, p95_ms"):
        parse_gates(f"exact,{text}")


def test_bad_gates_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl")
    for words in (["--gate", "speed>=1"], ["--gate", "exact", "--arms", "plain"]):
        result = CliRunner().invoke(app, ["bench", "--prompts", str(prompts), *words])
        assert result.exit_code == BAD_INPUT
        assert "gate is " in result.stderr


@pytest.mark.parametrize(("gate", "status", "outcome"), [("exact", OK, "pass"), ("tokens_a_pass>=4", FAILED, "fail")])
def test_the_exit_status_is_that_of_the_gates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: str, status: int, outcome: str
) -> None:
    @asynccontextmanager
    async def engine(_: object) -> AsyncIterator[object]:
        client = table_client()
        client.engine = SimpleNamespace(timings=None)  # type: ignore[attr-defined]
        yield SimpleNamespace(client=client, tokenizer=ByteTokenizer())

    monkeypatch.setattr("prolepsis.server.cli.engine.running", engine)  # the command loads a model
    prompts, report = write_prompts(tmp_path / "prompts.jsonl"), tmp_path / "report.json"
    result = CliRunner().invoke(app, ["bench", "--prompts", str(prompts), "--gate", gate, "--json", str(report)])
    assert result.exit_code == status, result.output
    [line] = [line.split() for line in result.stdout.splitlines() if line.strip().startswith(gate)]
    assert (line[1], line[-1]) == ("auto", outcome)
    [written] = json.loads(report.read_text())["gates"]
    assert (written["gate"], written["passed"]) == (gate, outcome == "pass")


def blocks() -> Iterator[Any]:
    page = (ROOT / "docs" / "how-to" / "gate-in-ci.md").read_text()
    for text in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield yaml.safe_load(text)


def scripts(value: Any) -> Iterator[str]:
    """Yield the commands of a pipeline: of GitHub's steps and of GitLab's jobs."""
    if isinstance(value, dict):
        for name, inner in value.items():
            lines = inner if isinstance(inner, list) else [inner]
            yield from (str(line) for line in lines) if name in ("run", "script") else scripts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from scripts(inner)


def test_the_examples_are_yaml_and_run_the_real_command() -> None:
    from tests.test_documentation import understood

    pipelines = list(blocks())
    assert pipelines, "GitHub Actions"
    for pipeline in pipelines:
        [command] = [line for line in scripts(pipeline) if line.startswith("prolepsis bench")]
        words = shlex.split(command)
        understood(tuple(words[1:]))
        assert "exact" in parse_gates(words[words.index("--gate") + 1])
