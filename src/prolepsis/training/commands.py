"""`prolepsis train`: draft heads and their levels, trained on text that the target writes."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from prolepsis.core.config import DEFAULT_MODEL, EngineConfig
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import settings_here, with_settings
from prolepsis.core.terminal.output import (
    AsJson,
    command_group,
    note,
    print_facts,
    quiet_logs,
)
from prolepsis.engine.commands.downloads import ensure_model
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import HeadRecipe, LevelSettings, StatedCost, StatedStepCost, TrainSettings

if TYPE_CHECKING:
    from prolepsis.training.training import HeadTraining

app = command_group("Train draft heads on the target's own text, and estimate the result beforehand.")

TargetName = Annotated[str, typer.Option("--target", help="model to train for, as for serve")]
Resume = Annotated[bool, typer.Option("--resume", help="continue the training in the directory")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores")]
_PREDICTED = (
    *("tokens", "acceptance by place=rates", "chain of 3=length"),
    *("best depth=choice.depth", "best vocabulary=choice.vocab", "speedup=choice.speedup"),
)
_DRAFTS = ("draft", "text", "weights", "draft_ms", "acceptance", "depth", "tokens", "speedup", "basis")
WITH_RESUME = "the same command with --resume continues"


@dataclass(frozen=True, slots=True)
class Text:
    """The text to train on."""

    tokens: Annotated[str, Option(help="amount of text to generate and train on, e.g. 500k or 10M")] = "10M"
    prompts: Annotated[
        Path | None,
        Option(help="your own prompts, used first: JSON lines with 'prompt', and 'kind' and 'system' if you want"),
    ] = None
    text: Annotated[
        Path | None,
        Option(help="text of the target, in place of new: JSON lines with 'prompt' and 'answer' as token ids"),
    ] = None
    concurrency: Annotated[int, Option(help="texts generated at once", min=1)] = 48
    answer_tokens: Annotated[int, Option(help="longest answer that is generated, in tokens", min=16)] = 256


@app.command()
@with_settings(Text(), HeadRecipe())
def head(
    text: Text,
    recipe: HeadRecipe,
    *,
    out: Annotated[Path, typer.Option(help="directory for data, checkpoints, head and report")],
    target: TargetName = DEFAULT_MODEL,
    resume: Resume = False,
    init: Annotated[str | None, typer.Option(help="head to start from: a name or a folder", metavar="HEAD")] = None,
    levels: Annotated[int, typer.Option(min=0, max=4, help="levels to train after the head; 0: none")] = 3,
    threads: Threads = None,
) -> None:
    """Train a draft head (EAGLE-3): generate text, train on it, and export the head with a report."""
    from prolepsis.engine.models.heads.registry import find_head
    from prolepsis.training.target import target_of
    from prolepsis.training.training import HeadTraining

    settings = _ready(target, threads)
    initial = find_head(init, settings.engine.model_dir).folder if init else None
    directory = RunDirectory(out)
    directory.create(resume=resume)
    with resumable(WITH_RESUME):
        generate_text(settings.engine, directory, text, recipe.training.seed)
        recipe = replace(recipe, init=initial, training=_on_this_machine(recipe.training, threads))
        training = HeadTraining(directory, target_of(settings.engine), recipe)
        run_training(training, "training")
    print_outcome(training)
    if levels:
        level_settings = LevelSettings(count=levels, seed=recipe.training.seed)
        with resumable(f"prolepsis train levels --out {out} trains the levels of the head that is there"):
            _train_levels(settings.engine, directory.exported, directory.data, level_settings, threads)


@app.command("levels")
@with_settings(LevelSettings())
def train_levels(
    recipe: LevelSettings,
    *,
    out: Annotated[Path, typer.Option(help="directory of a training, with the data and the head")],
    head: Annotated[
        str | None, typer.Option(help="another head of the same target: a name or a folder", metavar="HEAD")
    ] = None,
    target: TargetName = DEFAULT_MODEL,
    threads: Threads = None,
) -> None:
    """Train levels for an existing head, so that its first pass drafts all tokens. Takes minutes."""
    from prolepsis.engine.models.heads.registry import find_head

    settings = _ready(target, threads)
    directory = RunDirectory(out)
    folder = find_head(head, settings.engine.model_dir).folder if head else directory.exported
    _train_levels(settings.engine, folder, directory.data, recipe, threads)


@app.command("text")
def save_text(
    file: Annotated[Path, typer.Argument(help="new file, JSON lines for --text; .gz and .xz are compressed")],
    *,
    out: Annotated[Path, typer.Option(help="directory of a training, with the data")],
) -> None:
    """Write the text of a training to a file, without hidden states: its prompts and the target's answers."""
    from prolepsis.training.text import write_texts

    directory = RunDirectory(out)
    print_facts([("documents", str(write_texts(file, directory.data))), ("text", file)])


@app.command()
@with_settings(StatedCost())
def estimate(
    cost: StatedCost,
    *,
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="directory of a training, or a new one, for small runs")] = None,
    target: TargetName = DEFAULT_MODEL,
    bits: Annotated[float, typer.Option(min=1, max=32, help="bits of a weight, where the target is a size")] = 4.5,
    sizes: Annotated[str, typer.Option(help="tokens of the small runs; missing text is generated")] = "50k,100k,200k",
    budgets: Annotated[str, typer.Option(help="amounts of text to estimate for, in tokens")] = "1M,10M,100M",
    epochs: Annotated[float, typer.Option(min=0.01, help="passes over the text in each small run")] = 2.0,
    check: Annotated[
        Path | None, typer.Option(help="directory of a finished training to compare the estimate with")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate which draft pays for a target or a size, e.g. 7B; with --out from small runs what more text brings."""
    amounts = [count(budget) for budget in budgets.split(",")]
    if out is None:
        for name in ("sizes", "epochs", "check", "draft_ms", "draft_ms_per_1k"):
            if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE":
                raise InvalidParameter(f"{name} is for small runs; allowed: with --out", param=name)
        return _print_drafts(target, bits, cost, amounts, as_json=as_json)
    from prolepsis.training.estimate import predict, prediction_check, small_run
    from prolepsis.training.target import target_of
    from prolepsis.training.training import HeadTraining

    settings = _ready(target)
    run_sizes = sorted({count(size) for size in sizes.split(",")})
    if len(run_sizes) < 2:
        raise InvalidParameter(f"sizes is {sizes!r}; allowed: two or more, e.g. 50k,100k,200k", param="sizes")
    directory = RunDirectory(out)
    directory.create(resume=True)
    costs = _measured(cost, settings.engine)
    results = []
    with resumable("the same command continues"):
        generate_text(settings.engine, directory, Text(str(run_sizes[-1])))
        for size in run_sizes:
            small, recipe = small_run(directory, size, epochs)
            if not small.result.exists():
                run_training(HeadTraining(small, target_of(settings.engine), recipe), f"{size:,} tokens")
            results.append(small.read_result())
    predictions = predict(results, amounts, costs)
    checked = prediction_check(results, RunDirectory(check).read_result()) if check else None
    document = {"predictions": [asdict(prediction) for prediction in predictions], "costs": asdict(costs)}
    print_reply({**document, "check": checked}, {"predictions": _PREDICTED}, as_json=as_json)


def _print_drafts(target: str, bits: float, cost: StatedCost, budgets: Sequence[int], *, as_json: bool) -> None:
    from prolepsis.engine.commands.profile import rated_passes
    from prolepsis.engine.models.files.store import resolve
    from prolepsis.engine.native.processor import default_threads
    from prolepsis.training.draft_size import TargetSize, best, sized_drafts

    is_stated = cost.plain_ms is not None and cost.token_ms is not None
    if re.fullmatch(r"[\d.]+[mMgGbB]", target) and count(target) and not Path(target).exists():
        size, basis = TargetSize.stated(count(target), bits), "rates of reading and products measured here"
        costs = cost.on(None if is_stated else rated_passes(size.weights, size.bytes_per_pass, default_threads()))
    else:
        config = _ready(target).engine
        size, basis = TargetSize.of_files(resolve(target, config.model_dir), config.weights), "measured here"
        costs = _measured(cost, config)
    drafts = sized_drafts(size, costs, budgets)
    document = {
        "target": asdict(size),
        "passes": {"plain_ms": costs.plain_ms, "token_ms": costs.token_ms, "basis": "stated" if is_stated else basis},
        "recommended": {"head": best(drafts, "head"), "draft_model": best(drafts, "draft model")},
        "drafts": [asdict(row) for row in drafts],
    }
    print_reply(document, {"drafts": _DRAFTS}, as_json=as_json)


def _ready(target: str, threads: int | None = None) -> Settings:
    """Return the settings of a training, with the target on this machine."""
    quiet_logs()
    settings = settings_here(model=target, threads=threads)
    ensure_model(settings)
    return settings


def _measured(cost: StatedCost, config: EngineConfig) -> StatedStepCost:
    """Return the stated costs, and for the others this machine's, measured now if they never were."""
    if cost.plain_ms is not None and cost.token_ms is not None:
        return cost.on(None)
    from prolepsis.engine.commands.profile import take_profile

    costs = cost.on(take_profile(config, fresh=False).curve)
    note(f"a pass of one token takes {costs.plain_ms:.2f} ms here, each further token {costs.token_ms:.3f} ms")
    return costs


def _on_this_machine(settings: TrainSettings, threads: int | None) -> TrainSettings:
    """Return `settings` with the number of workers and the type for this machine."""
    from prolepsis.engine.native.processor import default_threads
    from prolepsis.training.target import training_dtype

    return replace(settings, workers=threads or default_threads(), dtype=training_dtype())


def _train_levels(config: EngineConfig, head: Path, data: Path, recipe: LevelSettings, threads: int | None) -> None:
    from prolepsis.engine.models.heads.levels import LEVELS
    from prolepsis.engine.native.processor import default_threads
    from prolepsis.training.levels import LevelRun
    from prolepsis.training.report import progress_bar
    from prolepsis.training.target import target_of, training_dtype

    recipe = replace(recipe, workers=threads or default_threads(), dtype=training_dtype())
    run = LevelRun(head, data, target_of(config), recipe)
    with progress_bar() as bar:
        task = bar.add_task("levels", total=run.trainer.num_steps, status="")
        for done in run.steps():
            bar.update(task, completed=done.step, status=f"loss {done.loss:.2f}")
    counts = run.counts.get("all")
    rates = " ".join(f"{rate:.3f}" for rate in counts.rates[: 1 + recipe.count]) if counts else ""
    print_facts(
        [
            ("levels", head / LEVELS),
            ("held-out acceptance with levels", rates or "not measured: the held-out text has no greedy answers"),
        ]
    )


@contextmanager
def resumable(how: str) -> Iterator[None]:
    """Name how to go on where the user interrupts the block: what it has made is kept."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"interrupted; what is done is kept: {how}")
        raise


def count(text: str) -> int:
    """Return the number written as `text`, e.g. 500k or 10M; raises `InvalidParameter` for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgGbB]?)", text.strip())
    if match is None:
        raise InvalidParameter(f"{text!r} is not a count; allowed: a number such as 42, 500k or 10M", param="tokens")
    return int(float(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}[match[2].lower()])


def generate_text(config: EngineConfig, directory: "RunDirectory", text: Text, seed: int = 0) -> None:
    """Let the target write, or read what it wrote, until the directory holds `text.tokens`."""
    from prolepsis.training.prompts import read_prompts
    from prolepsis.training.report import progress_bar
    from prolepsis.training.synthesis import DataRequest, SynthesisLimits, generate
    from prolepsis.training.target import open_target
    from prolepsis.training.text import record

    tokens = count(text.tokens)
    request = DataRequest(
        folder=directory.data,
        tokens=tokens,
        aux_layers=open_target(config.model, config.model_dir).recorded_layers,
        prompts=read_prompts(text.prompts) if text.prompts else (),
        seed=seed,
        limits=SynthesisLimits(concurrency=text.concurrency, answer_tokens=text.answer_tokens),
    )
    with progress_bar() as bar:
        task = bar.add_task("reading" if text.text else "generating", total=tokens, status="")

        def progress(done: int) -> None:
            bar.update(task, completed=min(done, tokens))

        if text.text is None:
            generate(config, request, progress)
        else:
            record(config, request, text.text, progress)


def run_training(training: "HeadTraining", name: str) -> None:
    """Train to the end, with a progress bar called `name`."""
    from prolepsis.training.report import progress_bar

    num_steps = training.trainer.num_steps
    note(f"{name}: {training.dataset.num_response_tokens:,} answer tokens, {num_steps:,} steps")
    with progress_bar() as bar:
        task = bar.add_task(name, total=num_steps, status="")
        for done in training.steps():
            status = f"loss {done.loss:.2f}"
            if training.trainer.history:
                last = training.trainer.history[-1]
                status += f", accepted {' '.join(f'{r:.2f}' for r in last.rates[:3])}, chain of 3: {last.length:.2f}"
            bar.update(task, completed=done.step, status=status)


def print_outcome(training: "HeadTraining") -> None:
    """Print where the export is and how well it drafts."""
    from prolepsis.training.report import PRODUCT

    directory, last = training.directory, training.trainer.history[-1]
    print_facts(
        [
            (PRODUCT, directory.exported),
            ("report", directory.report),
            ("held-out acceptance", " ".join(f"{rate:.3f}" for rate in last.rates)),
            ("tokens a pass, chain of 3", f"{last.length:.2f}"),
        ]
    )
