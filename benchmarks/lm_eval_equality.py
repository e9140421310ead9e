"""Does lm-eval get the same from our server as from transformers in float32, on the same weights?

    python -m benchmarks.lm_eval_equality --python PYTHON-WITH-LM-EVAL [--json OUT]

The default model is written as a folder. lm-eval's `hf` reads it in float32; its `local-completions` asks our server,
which serves that folder with `--weights f32`, and then the default model as it is by default. The tasks are made here:
40 questions with four answers each by log-likelihood, and 12 texts that are continued by 32 tokens. Exits 1 where the
server in float32 differs by more than 1e-2 in a log-likelihood, or in an answer.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.script import keep, options, served
from prolepsis.core.config import EngineConfig
from prolepsis.engine.models.files.export import export_model
from prolepsis.engine.models.files.store import resolve
from prolepsis.lab.measure.prompts import load_prompts

BOUND = 1e-2
FLOAT32 = ("--weights", "f32", "--strict", "off", "--num-speculative-tokens", "0")
"""Without self-check and measured passes, which take minutes in this forward."""
CHOICES = 4
NUM_TEXTS = 12
QUESTIONS: Mapping[str, str] = {
    "The capital of {} is": "France Paris, Italy Rome, Spain Madrid, Japan Tokyo, Egypt Cairo, Greece Athens, "
    "Russia Moscow, Germany Berlin, Austria Vienna, Portugal Lisbon, Norway Oslo, Poland Warsaw, Cuba Havana, "
    "Peru Lima",
    "The opposite of {} is": "hot cold, big small, up down, day night, open closed, rich poor, full empty, early late, "
    "hard soft, young old, black white, left right, happy sad",
    "A baby {} is called a": "dog puppy, cat kitten, cow calf, sheep lamb, horse foal, bear cub, duck duckling, "
    "goat kid, pig piglet, kangaroo joey, hen chick, swan cygnet, deer fawn",
}
CHOICE_TASK = """\
task: choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{right}}}}"
metric_list: [{{metric: acc}}]
"""
TEXT_TASK = """\
task: text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: ""
generation_kwargs: {{until: ["\\n\\n\\n"], max_gen_toks: 32, do_sample: false, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""

Samples = Mapping[str, Sequence[list[object]]]
"""The responses to each document, by task."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What one server's answers have in common with the reference's."""

    num_log_likelihoods: int
    largest: float
    mean: float
    same_greedy: int
    """Log-likelihoods of which both say alike whether the text is the likeliest."""
    same_choices: int
    num_texts: int
    same_texts: int

    @property
    def is_equal(self) -> bool:
        return self.largest <= BOUND and self.same_texts == self.num_texts


def questions() -> list[dict[str, object]]:
    """Return the questions, each with the right answer and the next ones of its kind."""
    found = list[dict[str, object]]()
    for text, pairs in QUESTIONS.items():
        split = [pair.split() for pair in pairs.split(", ")]
        for i, (subject, _) in enumerate(split):
            answers = [split[(i + step) % len(split)][1] for step in range(CHOICES)]
            right = len(found) % CHOICES
            choices = answers[-right:] + answers[:-right] if right else answers
            found.append({"question": text.format(subject), "choices": choices, "right": right})
    return found


def write_tasks(folder: Path) -> None:
    """Write both tasks with their documents."""
    texts = [{"question": prompt.text} for prompt in load_prompts(None)[:NUM_TEXTS]]
    for name, task, documents in (("choice", CHOICE_TASK, questions()), ("text", TEXT_TASK, texts)):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in documents))
        (folder / f"{name}.yaml").write_text(task.format(file=file))


def evaluate(python: Path, tasks: Path, model: str, arguments: Mapping[str, object]) -> Samples:
    """Run lm-eval in its own environment and return what each document got."""
    with TemporaryDirectory() as output:
        given = ",".join(f"{name}={value}" for name, value in arguments.items())
        command = ["-m", "lm_eval", "--model", model, "--model_args", given, "--tasks", "choice,text"]
        command += ["--include_path", str(tasks), "--output_path", output, "--log_samples"]
        command += ["--batch_size", "1", "--device", "cpu"]
        subprocess.run([python, *command], check=True, stdout=sys.stderr)  # noqa: S603  # names of this file
        return {name: _responses(Path(output), name) for name in ("choice", "text")}


def _responses(output: Path, task: str) -> list[list[object]]:
    [file] = output.rglob(f"samples_{task}_*.jsonl")
    documents = sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda one: one["doc_id"])
    return [document["filtered_resps"] for document in documents]


def compared(found: Samples, reference: Samples) -> Difference:
    """Return how far the answers of a server are from those of the reference."""
    pairs = [
        (_scored(a), _scored(b))
        for mine, right in zip(found["choice"], reference["choice"], strict=True)
        for a, b in zip(mine, right, strict=True)
    ]
    distances = [abs(a[0] - b[0]) for a, b in pairs]
    texts = list(zip(found["text"], reference["text"], strict=True))
    picked = [
        [max(range(CHOICES), key=lambda i: _scored(one[i])[0]) for one in samples["choice"]]
        for samples in (found, reference)
    ]
    return Difference(
        num_log_likelihoods=len(pairs),
        largest=max(distances),
        mean=sum(distances) / len(distances),
        same_greedy=sum(a[1] == b[1] for a, b in pairs),
        same_choices=sum(a == b for a, b in zip(*picked, strict=True)),
        num_texts=len(texts),
        same_texts=sum(mine == right for mine, right in texts),
    )


def _scored(response: object) -> tuple[float, bool]:
    assert isinstance(response, list), f"a log-likelihood, not {response!r}"
    return float(response[0]), str(response[1]) == "True"


def measure(python: Path, work: Path) -> dict[str, Difference]:
    """Return the differences of both servers."""
    default = EngineConfig().model
    write_tasks(work)
    folder = export_model(resolve(default), work / "model")
    reference = evaluate(python, work, "hf", {"pretrained": folder, "dtype": "float32"})
    found = dict[str, Difference]()
    for arm, flags in (("float32", ["--model", str(folder), *FLOAT32]), ("default", [])):
        with served(*flags, "--served-model-name", "under-test") as url:
            asked = {"model": "under-test", "base_url": f"{url}/v1/completions", "tokenizer": folder}
            limits = {"num_concurrent": 1, "max_retries": 1, "max_length": 2048}
            found[arm] = compared(evaluate(python, work, "local-completions", asked | limits), reference)
    return found


def main() -> None:
    arguments = options(__doc__, python=Path)
    if arguments.python is None:
        sys.exit("--python PYTHON is needed: of an environment with lm-eval")
    with TemporaryDirectory() as work:
        found = measure(arguments.python, Path(work))
    for arm, one in found.items():
        questions = one.num_log_likelihoods // CHOICES
        print(
            f"{arm}: {one.num_log_likelihoods} log-likelihoods, largest difference {one.largest:.2g}, mean "
            f"{one.mean:.2g}; {one.same_greedy} say alike whether the text is the likeliest; the same choice in "
            f"{one.same_choices} of {questions}; {one.same_texts} of {one.num_texts} texts equal"
        )
    keep(arguments, arms={arm: asdict(one) for arm, one in found.items()})
    sys.exit(not found["float32"].is_equal)


if __name__ == "__main__":
    main()
