"""`prolepsis train`: draft heads for a target of one's own, from the target's own text."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prolepsis.cli.flags import settings_here
from prolepsis.cli.groups import AsJson, command_group
from prolepsis.cli.models import ensure_model
from prolepsis.cli.output import EPILOG, note, print_facts, print_json, print_table, quiet_logs, stderr
from prolepsis.core.config import DEFAULT_MODEL, EngineConfig
from prolepsis.core.errors import InvalidParameter

if TYPE_CHECKING:
    import torch
    from rich.progress import Progress

    from prolepsis.train.run import HeadPlan, HeadTraining
    from prolepsis.train.workplace import Workplace

app = command_group("Train draft heads from the target's own text, and predict what training will bring.")

_TARGET = typer.Option("--target", help="model to train for, as for serve")
_RECIPE = "Recipe"


@app.command(epilog=EPILOG)
def head(
    *,
    out: Annotated[Path, typer.Option(help="folder for data, checkpoints, head and report")],
    target: Annotated[str, _TARGET] = DEFAULT_MODEL,
    tokens: Annotated[str, typer.Option(help="text to generate and train on, e.g. 500k or 10M")] = "10M",
    prompts: Annotated[Path | None, typer.Option(help="own prompts, used first: JSON lines with 'prompt'")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with what the folder holds")] = False,
    init: Annotated[Path | None, typer.Option(help="head to go on from", metavar="HEAD")] = None,
    epochs: Annotated[float, typer.Option(min=0.01, help="passes over the text", rich_help_panel=_RECIPE)] = 4.0,
    draft_vocab: Annotated[
        int, typer.Option(min=64, help="tokens that the head can draft", rich_help_panel=_RECIPE)
    ] = 8192,
    unroll: Annotated[
        int, typer.Option(min=1, max=8, help="steps of the training-time test", rich_help_panel=_RECIPE)
    ] = 3,
    rate: Annotated[float, typer.Option(min=0.0, help="peak rate of AdamW", rich_help_panel=_RECIPE)] = 2.5e-4,
    muon: Annotated[
        float, typer.Option(min=0.0, help="peak rate of Muon for matrices; 0: AdamW", rich_help_panel=_RECIPE)
    ] = 0.0,
    noise: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="spread of the factor on inputs", rich_help_panel=_RECIPE)
    ] = 0.0,
    batch: Annotated[int, typer.Option(min=1, help="answer tokens of a step", rich_help_panel=_RECIPE)] = 768,
    concurrency: Annotated[int, typer.Option(min=1, help="texts generated at once", rich_help_panel=_RECIPE)] = 48,
    seed: Annotated[int, typer.Option(help="of prompts, answers and first weights")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores")] = None,
) -> None:
    """Train a draft head (EAGLE-3): generate text, train on it, export the head with its report at each measurement."""
    from prolepsis.native.processor import default_threads
    from prolepsis.train.optimiser import Rates
    from prolepsis.train.run import HeadPlan
    from prolepsis.train.trainer import TrainSettings
    from prolepsis.train.training_step import Objective
    from prolepsis.train.workplace import Workplace

    quiet_logs()
    settings = settings_here(model=target, threads=threads)
    ensure_model(settings)
    workplace = Workplace(out)
    workplace.begin(resume=resume)
    _generate(settings.engine, workplace, count(tokens), prompts=prompts, seed=seed, concurrency=concurrency)
    recipe = TrainSettings(
        epochs=epochs,
        anchors_per_step=batch,
        objective=Objective(num_steps=unroll, noise=noise),
        rates=Rates(adamw=rate, muon=muon or None),
        seed=seed,
        workers=threads or default_threads(),
        dtype=training_dtype(),
    )
    training = _training(settings.engine, workplace, HeadPlan(draft_vocab=draft_vocab, init=init, settings=recipe))
    _run(training, "training")
    last = training.trainer.history[-1]
    print_facts(
        [
            ("head", workplace.head),
            ("report", workplace.report),
            ("held-out acceptance", " ".join(f"{rate:.3f}" for rate in last.rates)),
            ("tokens of a step, chain of 3", f"{last.length:.2f}"),
        ]
    )


@app.command(epilog=EPILOG)
def plan(
    *,
    out: Annotated[Path, typer.Option(help="folder of a training with data; small runs go beneath it")],
    target: Annotated[str, _TARGET] = DEFAULT_MODEL,
    sizes: Annotated[
        str, typer.Option(help="tokens of the small runs; data that lack are generated")
    ] = "50k,100k,200k",
    budgets: Annotated[str, typer.Option(help="tokens to predict for")] = "1M,10M,100M",
    epochs: Annotated[float, typer.Option(min=0.01, help="passes over the text, in each run")] = 2.0,
    plain_ms: Annotated[float, typer.Option(min=0.0, help="a pass of one token")] = 17.0,
    row_ms: Annotated[float, typer.Option(min=0.0, help="each further token of a pass")] = 0.29,
    draft_ms: Annotated[float, typer.Option(min=0.0, help="a draft step without its output head")] = 0.6,
    draft_ms_per_1k: Annotated[float, typer.Option(min=0.0, help="output head, per thousand draft tokens")] = 0.07,
    check: Annotated[Path | None, typer.Option(help="a finished training to compare the prediction with")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict acceptance at larger budgets from small runs, and the best depth and vocabulary for what steps cost."""
    from prolepsis.train.plan import StepCost
    from prolepsis.train.planning import predict, prediction_check, small_run
    from prolepsis.train.workplace import Workplace

    quiet_logs()
    settings = settings_here(model=target)
    ensure_model(settings)
    wanted = sorted({count(size) for size in sizes.split(",")})
    if len(wanted) < 2:
        raise InvalidParameter(f"sizes is {sizes!r}; allowed: two or more, e.g. 50k,100k,200k", param="sizes")
    workplace = Workplace(out)
    workplace.begin(resume=True)
    _generate(settings.engine, workplace, wanted[-1])
    runs = []
    for size in wanted:
        place, head_plan = small_run(workplace, size, epochs)
        if not place.result.exists():
            _run(_training(settings.engine, place, head_plan), f"{size:,} tokens")
        runs.append(place.read_result())
    cost = StepCost(plain_ms, row_ms, draft_ms, draft_ms_per_1k)
    predictions = predict(runs, [count(budget) for budget in budgets.split(",")], cost)
    checked = prediction_check(runs, Workplace(check).read_result()) if check else None
    if as_json:
        print_json({"predictions": [asdict(p) for p in predictions], "check": checked})
        return
    columns = ["tokens", *(f"token {j + 1}" for j in range(len(predictions[0].rates))), "chain of 3", "best depth"]
    rows = [
        [
            f"{p.tokens:,}",
            *(f"{rate:.3f}" for rate in p.rates),
            f"{p.length:.2f}",
            str(p.choice.depth),
            str(p.choice.vocab),
            f"{p.choice.speedup:.2f}x",
        ]
        for p in predictions
    ]
    print_table("predicted acceptance", [*columns, "best vocabulary", "speedup"], rows)
    if checked is not None:
        print_facts([(name, str(value)) for name, value in checked.items()])


def count(text: str) -> int:
    """Return the number that `text` stands for, as in 500k or 10M; raises `InvalidParameter` for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)", text.strip())
    if match is None:
        raise InvalidParameter(f"{text!r} is no count; allowed: a number, or one such as 500k or 10M", param="tokens")
    return int(float(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match[2].lower()])


def training_dtype() -> "torch.dtype":
    """Return bfloat16 where matrix products in it are fast (CUDA, AVX-512 BF16, AMX), else float32."""
    import torch

    from prolepsis.native.processor import AVX2_FMA, instruction_sets, processor_flags

    fast = [found for found in instruction_sets(processor_flags()) if found != AVX2_FMA]
    return torch.bfloat16 if fast else torch.float32


def _generate(
    config: EngineConfig,
    workplace: "Workplace",
    tokens: int,
    *,
    prompts: Path | None = None,
    seed: int = 0,
    concurrency: int = 48,
) -> None:
    from prolepsis.train.generation import DataRequest, generate
    from prolepsis.train.prompts import read_prompts
    from prolepsis.train.synthesis import SynthesisLimits
    from prolepsis.train.target import open_target

    given: Sequence[str] = read_prompts(prompts) if prompts else ()
    request = DataRequest(
        folder=workplace.data,
        tokens=tokens,
        taps=open_target(config.model, config.model_dir).recorded_taps,
        prompts=given,
        seed=seed,
        limits=SynthesisLimits(concurrency=concurrency),
    )
    with _bar() as bar:
        task = bar.add_task("generating", total=tokens, told="")
        generate(config, request, lambda done: bar.update(task, completed=min(done, tokens)))


def _training(config: EngineConfig, workplace: "Workplace", head_plan: "HeadPlan") -> "HeadTraining":
    import torch

    from prolepsis.train.run import HeadTraining
    from prolepsis.train.target import open_target

    torch.set_num_threads(1)  # the workers share a batch by documents
    return HeadTraining(workplace, open_target(config.model, config.model_dir), head_plan)


def _run(training: "HeadTraining", what: str) -> None:
    note(f"{what}: {training.library.num_response_tokens:,} answer tokens, {training.trainer.num_steps:,} steps")
    with _bar() as bar:
        task = bar.add_task(what, total=training.trainer.num_steps, told="")
        for done in training.steps():
            told = f"loss {done.loss:.2f}"
            if training.trainer.history:
                last = training.trainer.history[-1]
                told += f", accepted {' '.join(f'{r:.2f}' for r in last.rates[:3])}, chain of 3: {last.length:.2f}"
            bar.update(task, completed=done.step, told=told)


def _bar() -> "Progress":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[told]}"), console=stderr())
