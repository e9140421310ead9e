"""`prolepsis train`: what drafts for a target of one's own, from the target's own text."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prolepsis.cli.flags import settings_here
from prolepsis.cli.models import ensure_model
from prolepsis.cli.output import EPILOG, AsJson, command_group, print_facts, print_json, print_table, quiet_logs
from prolepsis.cli.training import (
    Text,
    count,
    make_text,
    print_outcome,
    progress_bar,
    run_training,
    target_of,
    training_dtype,
)
from prolepsis.core.config import DEFAULT_MODEL, EngineConfig
from prolepsis.core.errors import InvalidParameter

if TYPE_CHECKING:
    from prolepsis.train.head_training import HeadPlan, HeadTraining
    from prolepsis.train.levels import LevelSettings
    from prolepsis.train.workplace import Workplace

app = command_group("Train what drafts for a target from its own text, and predict what training will bring.")

_RECIPE = "Recipe"
Target = Annotated[str, typer.Option("--target", help="model to train for, as for serve")]
Tokens = Annotated[str, typer.Option(help="text to generate and train on, e.g. 500k or 10M")]
Prompts = Annotated[Path | None, typer.Option(help="own prompts, used first: JSON lines with 'prompt'")]
Resume = Annotated[bool, typer.Option("--resume", help="go on with what the folder holds")]
Epochs = Annotated[float, typer.Option(min=0.01, help="passes over the text", rich_help_panel=_RECIPE)]
Rate = Annotated[float, typer.Option(min=0.0, help="peak rate of AdamW", rich_help_panel=_RECIPE)]
Concurrency = Annotated[int, typer.Option(min=1, help="texts generated at once", rich_help_panel=_RECIPE)]
Seed = Annotated[int, typer.Option(help="of prompts, answers and first weights")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores")]
Levels = Annotated[
    int,
    typer.Option(
        min=0,
        max=4,
        help="levels drafted by the pass of the first, trained at the end; 0: none",
        rich_help_panel=_RECIPE,
    ),
]


@app.command(epilog=EPILOG)
def head(
    *,
    out: Annotated[Path, typer.Option(help="folder for data, checkpoints, head and report")],
    target: Target = DEFAULT_MODEL,
    tokens: Tokens = "10M",
    prompts: Prompts = None,
    resume: Resume = False,
    init: Annotated[str | None, typer.Option(help="head to go on from: a name or a folder", metavar="HEAD")] = None,
    epochs: Epochs = 4.0,
    draft_vocab: Annotated[
        int, typer.Option(min=64, help="tokens that the head can draft", rich_help_panel=_RECIPE)
    ] = 8192,
    unroll: Annotated[
        int, typer.Option(min=1, max=8, help="steps of the training-time test", rich_help_panel=_RECIPE)
    ] = 3,
    rate: Rate = 2.5e-4,
    levels: Levels = 3,
    muon: Annotated[
        float, typer.Option(min=0.0, help="peak rate of Muon for matrices; 0: AdamW", rich_help_panel=_RECIPE)
    ] = 0.0,
    noise: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="spread of the factor on inputs", rich_help_panel=_RECIPE)
    ] = 0.0,
    batch: Annotated[int, typer.Option(min=1, help="answer tokens of a step", rich_help_panel=_RECIPE)] = 768,
    concurrency: Concurrency = 48,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a draft head (EAGLE-3): generate text, train on it, export the head with its report at each measurement."""
    from prolepsis.models.heads.registry import find_head
    from prolepsis.native.processor import default_threads
    from prolepsis.train.head_student import Objective
    from prolepsis.train.head_training import HeadPlan
    from prolepsis.train.levels import LevelSettings
    from prolepsis.train.optimiser import Rates
    from prolepsis.train.trainer import TrainSettings
    from prolepsis.train.workplace import Workplace

    quiet_logs()
    settings = settings_here(model=target, threads=threads)
    ensure_model(settings)
    first = find_head(init, settings.engine.model_dir).folder if init else None
    workplace = Workplace(out)
    workplace.begin(resume=resume)
    make_text(settings.engine, workplace, Text(count(tokens), prompts, seed, concurrency))
    recipe = TrainSettings(
        epochs=epochs,
        anchors_per_step=batch,
        rates=Rates(adamw=rate, muon=muon or None),
        seed=seed,
        workers=threads or default_threads(),
        dtype=training_dtype(),
    )
    plan = HeadPlan(
        draft_vocab=draft_vocab, init=first, objective=Objective(num_steps=unroll, noise=noise), settings=recipe
    )
    training = _head_training(settings.engine, workplace, plan)
    run_training(training, "training")
    print_outcome(training)
    if levels:
        behind = LevelSettings(count=levels, seed=seed, workers=recipe.workers, dtype=recipe.dtype)
        _train_levels(settings.engine, workplace.exported, workplace.data, behind)


@app.command("levels", epilog=EPILOG)
def train_levels(
    *,
    out: Annotated[Path, typer.Option(help="folder of a training: its data are used, its head gets levels")],
    head: Annotated[str | None, typer.Option(help="another head of the same target: a name or a folder")] = None,
    target: Target = DEFAULT_MODEL,
    count: Annotated[int, typer.Option("--levels", min=1, max=4, help="levels behind the first")] = 3,
    width: Annotated[int, typer.Option(min=32, help="width of a level, a multiple of 32")] = 256,
    anchors: Annotated[
        int, typer.Option(min=1, help="answer tokens to train on, read again where they lack")
    ] = 400_000,
    rate: Annotated[float, typer.Option(min=0.0, help="peak rate of AdamW")] = 1e-3,
    seed: Annotated[int, typer.Option(help="of order and first weights")] = 0,
    threads: Threads = None,
) -> None:
    """Train levels for a head that is there: its first pass then drafts all tokens. Takes minutes."""
    from prolepsis.models.heads.registry import find_head
    from prolepsis.native.processor import default_threads
    from prolepsis.train.levels import LevelSettings
    from prolepsis.train.workplace import Workplace

    quiet_logs()
    if width % 32:
        raise InvalidParameter(f"width is {width}; allowed: a multiple of 32", param="width")
    settings = settings_here(model=target, threads=threads)
    ensure_model(settings)
    workplace = Workplace(out)
    recipe = LevelSettings(
        count=count,
        width=width,
        max_anchors=anchors,
        rate=rate,
        seed=seed,
        workers=threads or default_threads(),
        dtype=training_dtype(),
    )
    behind = find_head(head, settings.engine.model_dir).folder if head else workplace.exported
    _train_levels(settings.engine, behind, workplace.data, recipe)


@app.command(epilog=EPILOG)
def draft_model(
    *,
    out: Annotated[Path, typer.Option(help="folder for data, checkpoints, model and report; a head's will do")],
    target: Target = DEFAULT_MODEL,
    tokens: Tokens = "10M",
    prompts: Prompts = None,
    resume: Resume = False,
    epochs: Epochs = 4.0,
    layers: Annotated[int, typer.Option(min=1, help="layers of the model", rich_help_panel=_RECIPE)] = 4,
    hidden: Annotated[int, typer.Option(min=1, help="width of the model", rich_help_panel=_RECIPE)] = 256,
    loss_vocab: Annotated[
        int, typer.Option(min=64, help="tokens in the loss of every step", rich_help_panel=_RECIPE)
    ] = 8192,
    loss_sample: Annotated[
        int, typer.Option(min=1, help="others in the loss of a step, drawn anew", rich_help_panel=_RECIPE)
    ] = 1024,
    rate: Rate = 2e-3,
    batch: Annotated[int, typer.Option(min=1, help="tokens of a step", rich_help_panel=_RECIPE)] = 1024,
    concurrency: Concurrency = 48,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a draft model: distil the target into a small model with its tokenizer, on the same text as a head."""
    from prolepsis.native.processor import default_threads
    from prolepsis.train.draft_model_training import MEASURE_EVERY, DraftModelPlan, DraftModelSize, DraftModelTraining
    from prolepsis.train.optimiser import Rates
    from prolepsis.train.trainer import TrainSettings
    from prolepsis.train.workplace import MODEL, Workplace

    quiet_logs()
    settings = settings_here(model=target, threads=threads)
    size = DraftModelSize(layers, hidden)
    ensure_model(settings)
    workplace = Workplace(out, MODEL)
    workplace.begin(resume=resume)
    make_text(settings.engine, workplace, Text(count(tokens), prompts, seed, concurrency))
    recipe = TrainSettings(
        epochs=epochs,
        anchors_per_step=batch,
        rates=Rates(adamw=rate),
        prompt_epochs=math.ceil(epochs),
        seed=seed,
        workers=threads or default_threads(),
        dtype=training_dtype(),
        measure_every=MEASURE_EVERY,
    )
    plan = DraftModelPlan(size, frequent=loss_vocab, sampled=loss_sample, settings=recipe)
    training = DraftModelTraining(workplace, target_of(settings.engine), plan)
    run_training(training, "training")
    print_outcome(training)


@app.command(epilog=EPILOG)
def plan(
    *,
    out: Annotated[Path, typer.Option(help="folder of a training with data; small runs go beneath it")],
    target: Target = DEFAULT_MODEL,
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
    from prolepsis.train.plan import StepCost, predict, prediction_check, small_run
    from prolepsis.train.workplace import Workplace

    quiet_logs()
    settings = settings_here(model=target)
    ensure_model(settings)
    wanted = sorted({count(size) for size in sizes.split(",")})
    if len(wanted) < 2:
        raise InvalidParameter(f"sizes is {sizes!r}; allowed: two or more, e.g. 50k,100k,200k", param="sizes")
    workplace = Workplace(out)
    workplace.begin(resume=True)
    make_text(settings.engine, workplace, Text(wanted[-1]))
    runs = []
    for size in wanted:
        place, head_plan = small_run(workplace, size, epochs)
        if not place.result.exists():
            run_training(_head_training(settings.engine, place, head_plan), f"{size:,} tokens")
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


def _head_training(config: EngineConfig, workplace: "Workplace", plan: "HeadPlan") -> "HeadTraining":
    from prolepsis.train.head_training import HeadTraining

    return HeadTraining(workplace, target_of(config), plan)


def _train_levels(config: EngineConfig, head: Path, data: Path, recipe: "LevelSettings") -> None:
    from prolepsis.models.heads.levels import LEVELS
    from prolepsis.train.levels import LevelRun

    run = LevelRun(head, data, target_of(config), recipe)
    with progress_bar() as bar:
        task = bar.add_task("levels", total=run.training.num_steps, told="")
        for done in run.steps():
            bar.update(task, completed=done.step, told=f"loss {done.loss:.2f}")
    counts = run.counts.get("all")
    rates = counts.rates[: 1 + recipe.count] if counts else []
    print_facts(
        [
            ("levels", head / LEVELS),
            ("held-out acceptance with levels", " ".join(f"{rate:.3f}" for rate in rates) or "no greedy text held out"),
        ]
    )
