"""What the commands of `prolepsis train` share: text made and students trained, each with a bar; counts as written."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.cli.output import note, print_facts, stderr
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import InvalidParameter

if TYPE_CHECKING:
    import torch
    from rich.progress import Progress

    from prolepsis.train.target import Target
    from prolepsis.train.training import Training
    from prolepsis.train.workplace import Workplace


@dataclass(frozen=True, slots=True)
class Text:
    """The text to train on."""

    tokens: int
    prompts: Path | None = None
    """The user's own, used first."""
    seed: int = 0
    concurrency: int = 48


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


def make_text(config: EngineConfig, workplace: "Workplace", text: Text) -> None:
    """Let the target write until the folder holds `text.tokens`."""
    from prolepsis.train.generation import DataRequest, generate
    from prolepsis.train.prompts import read_prompts
    from prolepsis.train.synthesis import SynthesisLimits
    from prolepsis.train.target import open_target

    given: Sequence[str] = read_prompts(text.prompts) if text.prompts else ()
    request = DataRequest(
        folder=workplace.data,
        tokens=text.tokens,
        taps=open_target(config.model, config.model_dir).recorded_taps,
        prompts=given,
        seed=text.seed,
        limits=SynthesisLimits(concurrency=text.concurrency),
    )
    with progress_bar() as bar:
        task = bar.add_task("generating", total=text.tokens, told="")
        generate(config, request, lambda done: bar.update(task, completed=min(done, text.tokens)))


def target_of(config: EngineConfig) -> "Target":
    """Open the target to train for; torch is left one thread, as workers share a batch by documents."""
    import torch

    from prolepsis.train.target import open_target

    torch.set_num_threads(1)
    return open_target(config.model, config.model_dir)


def run_training(training: "Training", what: str) -> None:
    """Train to the end."""
    note(f"{what}: {training.library.num_response_tokens:,} answer tokens, {training.trainer.num_steps:,} steps")
    with progress_bar() as bar:
        task = bar.add_task(what, total=training.trainer.num_steps, told="")
        for done in training.steps():
            told = f"loss {done.loss:.2f}"
            if training.trainer.history:
                last = training.trainer.history[-1]
                told += f", accepted {' '.join(f'{r:.2f}' for r in last.rates[:3])}, chain of 3: {last.length:.2f}"
            bar.update(task, completed=done.step, told=told)


def print_outcome(training: "Training") -> None:
    """Say where the export lies and how well it drafts."""
    workplace, last = training.workplace, training.trainer.history[-1]
    print_facts(
        [
            (training.product.name, workplace.exported),
            ("report", workplace.report),
            ("held-out acceptance", " ".join(f"{rate:.3f}" for rate in last.rates)),
            ("tokens of a step, chain of 3", f"{last.length:.2f}"),
        ]
    )


def progress_bar() -> "Progress":
    """Return a bar whose tasks have a field `told`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[told]}"), console=stderr())
