"""The sentence that a measurement ends with: a figure with machine and model, or why there is none."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.core.requests import SamplingParams
from prolepsis.lab.bench import BenchJob, run_bench
from prolepsis.lab.measure.contenders import Outcome, Run, Schedule
from prolepsis.lab.measure.prompts import EncodedPrompt, encode_prompts, load_prompts
from prolepsis.lab.measure.report import Figures, Setting, print_report, print_sentence
from prolepsis.lab.measure.verdicts import quote
from tests.lab.measure.fakes import INFO, ByteTokenizer, table_client, two_prompts

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
        "tokens a step, 2 of 2 answers as plain (2 prompts of set.jsonl, to 60 tokens each; median and range of 2 "
        "repeats)."
    )


def test_above_one_at_once_it_has_no_tokens_a_step() -> None:
    text = said(both(at_once=4), setting(at_once=4, temperature=0.8))
    assert text.startswith("fake on 2 cores of Zen 9, 4 at once, temperature 0.8: `auto` emits 1.80x (1.60 to 2.00) of")
    assert "tokens a step" not in text


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
    assert "3.00 tokens a step, 2 of 2 answers as plain" in report["sentence"]
    [ratio] = report["arms"]["auto"]["all"]["speedup"]["repeats"]
    assert ratio > 1.5
    assert f"{ratio:.2f}x" in report["sentence"]


def test_with_synthetic_drafts_there_is_none() -> None:
    info = replace(INFO, proposers=("synthetic",))
    assert quote(both(), setting(), info, HARDWARE) == "No figure to quote: the drafts are synthetic."
