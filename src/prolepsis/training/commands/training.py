"""Parts that the commands of `prolepsis train` share: text generation and progress bars."""

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.terminal.output import note, print_facts, stderr
from prolepsis.training.settings import Dtype

if TYPE_CHECKING:
    from rich.progress import Progress

    from prolepsis.training.run_directory import RunDirectory
    from prolepsis.training.target import Target
    from prolepsis.training.training import Training


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


@contextmanager
def resumable(how: str) -> Iterator[None]:
    """Name how to go on where the user interrupts the block: what it has made is kept."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"interrupted; what is done is kept: {how}")
        raise


_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # malloc.h
WITH_RESUME = "the same command with --resume continues"


def count(text: str) -> int:
    """Return the number written as `text`, e.g. 500k or 10M; raises `InvalidParameter` for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)", text.strip())
    if match is None:
        raise InvalidParameter(f"{text!r} is not a count; allowed: a number such as 42, 500k or 10M", param="tokens")
    return int(float(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match[2].lower()])


def training_dtype() -> Dtype:
    """Return bfloat16 if the processor multiplies matrices in it fast (AVX-512 BF16, AMX), else float32."""
    from prolepsis.engine.native.processor import AVX512_BF16, instruction_sets, processor_flags

    return "bfloat16" if AVX512_BF16 in instruction_sets(processor_flags()) else "float32"


def generate_text(config: EngineConfig, directory: "RunDirectory", text: Text, seed: int = 0) -> None:
    """Let the target write, or read what it wrote, until the directory holds `text.tokens`."""
    from prolepsis.training.prompts import read_prompts
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


def target_of(config: EngineConfig) -> "Target":
    """Open the target and prepare torch: one thread, since the workers of a training share a batch by documents."""
    import torch

    from prolepsis.training.target import open_target

    torch.set_num_threads(1)
    keep_memory()
    return open_target(config.model, config.model_dir)


def keep_memory() -> None:
    """Let the GNU C library keep memory that is freed, so that the matrices of a step cost no page faults.

    They have tens of MB each: the faults took a third of the time of a training.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for parameter, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1)):
            mallopt(parameter, value)


def run_training(training: "Training[Any]", name: str) -> None:
    """Train to the end, with a progress bar called `name`."""
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


def print_outcome(training: "Training[Any]") -> None:
    """Print where the export is and how well it drafts."""
    directory, last = training.directory, training.trainer.history[-1]
    print_facts(
        [
            (training.product.name, directory.exported),
            ("report", directory.report),
            ("held-out acceptance", " ".join(f"{rate:.3f}" for rate in last.rates)),
            ("tokens per step, chain of 3", f"{last.length:.2f}"),
        ]
    )


def progress_bar() -> "Progress":
    """Return a progress bar whose tasks have a field `status`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[status]}"), console=stderr())
