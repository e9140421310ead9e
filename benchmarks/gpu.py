"""Does the engine hold on a GPU? Graphs, rows, costs of passes, drafts of a stated acceptance, time outside the pass.

Usage: python -m benchmarks.gpu [--shapes 1b,8b] [--device cuda] [--acceptance 0.8] [--minutes 8] [--json FILE]

No model file is needed: weights are random, in bf16, at the shapes of models that people serve. A random model says
nothing about text, so drafts come from a proposer that knows the answer and is right with the stated probability.
Each question prints its answer as soon as it has one, and what no longer fits into `--minutes` is named. Questions:

graphs      Are logits of a captured graph those of the eager pass? Greatest difference, and whether bits are equal.
rows        Does a row have the same bits alone, in a batch, and in a draft's verification?
passes      What does a pass of 1 to 64 rows cost against reading the weights once at the measured bandwidth?
drafts      Tokens per second, plain and `auto`, at 1, 16 and 64 at once; how many answers are equal;
            milliseconds of a step by phase, the forward and what is outside it.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from benchmarks.script import options
from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Failed, Finished, Tokens
from prolepsis.core.messages import Submit
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.build import FREE_PROPOSERS, assemble
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.files.config import llama_shaped
from prolepsis.engine.models.load import LoadedModel, pick_device, pick_forward
from prolepsis.engine.models.protocol import Batch, SequenceInput, TargetModel, pack
from prolepsis.engine.models.targets.graphs import GraphedLean
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.step import Engine
from prolepsis.engine.text.model_tokenizer import ModelTokenizer, TokenizerParts
from prolepsis.lab.measure.provenance import provenance

_NAMES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SHAPES = {
    "tiny": dict(zip(_NAMES, (512, 64, 128, 2, 4), strict=True)) | {"num_key_value_heads": 2},
    "1b": dict(zip(_NAMES, (128256, 2048, 8192, 16, 32), strict=True)) | {"num_key_value_heads": 8},
    "8b": dict(zip(_NAMES, (128256, 4096, 14336, 32, 32), strict=True)) | {"num_key_value_heads": 8},
}
"""Of Llama 3.2 1B and Llama 3.1 8B; `tiny` tries the script itself."""
ROWS = (1, 2, 4, 8, 16, 32, 64)
AT_ONCE = (1, 16, 64)
CONTEXT = 512
PROMPT, ANSWER = 64, 96
"""Tokens of a request."""
REPEATS = 20
GIB = 2.0**30


class RandomTensors(Mapping[str, Tensor]):
    """Weights of a Llama shape, made when they are read: the same for the same name."""

    def __init__(self, shape: Mapping[str, int]) -> None:
        hidden, inner = shape["hidden_size"], shape["intermediate_size"]
        keys = hidden * shape["num_key_value_heads"] // shape["num_attention_heads"]
        ends = {"model.embed_tokens.weight": (shape["vocab_size"], hidden), "model.norm.weight": (hidden,)}
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        layers = {
            f"model.layers.{i}.{name}.weight": sizes
            for i in range(shape["num_hidden_layers"])
            for name, sizes in layer.items()
        }
        self._sizes: dict[str, tuple[int, ...]] = {**ends, "lm_head.weight": (shape["vocab_size"], hidden), **layers}

    def __getitem__(self, name: str) -> Tensor:
        sizes = self._sizes[name]
        if len(sizes) == 1:
            return torch.ones(sizes, dtype=torch.bfloat16)
        seed = torch.Generator().manual_seed(sum(name.encode()) * 7919 + len(name))
        # 256 rows, each used again and again: a random 8B would take minutes
        block = torch.randn(min(sizes[0], 256), sizes[1], generator=seed) * sizes[1] ** -0.5
        order = torch.arange(sizes[0]) % len(block)
        scale = 1.0 + 0.001 * torch.arange(sizes[0]).remainder(997)
        weights: Tensor = (block[order] * scale[:, None]).bfloat16()
        return weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


def random_model(name: str, device: torch.device) -> LoadedModel:
    """Return a model of a shape with random weights; its tokenizer has a word for each token."""
    shape = SHAPES[name]
    config = llama_shaped({"model_type": "llama", "max_position_embeddings": 8192, "eos_token_id": 2, **shape})
    checkpoint = Checkpoint(config, RandomTensors(shape), Path(name))
    words = {f"w{i}": i for i in range(config.vocab_size)}
    backend = Tokenizer(WordLevel(words, "w0"))
    tokenizer = ModelTokenizer(TokenizerParts(backend, None, {}, (2,), digest=name))
    model, _ = pick_forward(checkpoint, name, EngineConfig(), device)
    return LoadedModel(model, tokenizer, f"random-{name}")


class Oracle(Proposer):
    """Knows the answers and drafts them; each token is right with the stated probability, whatever is asked again."""

    name = "suffix"  # counted as the proposer whose place it takes
    free = True

    def __init__(self, acceptance: float) -> None:
        self.acceptance = acceptance
        self.answers: dict[str, Sequence[int]] = {}

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._draft(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        prompt = sequence.key.split("/")[0].rpartition("-")[2]
        done = len(sequence.tokens) - sequence.num_prompt_tokens
        ahead = self.answers.get(prompt, ())[done : done + limit]
        drafted = []
        for i, token in enumerate(ahead):
            is_right = random.Random(f"{prompt}/{done + i}").random() < self.acceptance
            drafted.append(token if is_right else (token + 1) % 500)
        return chain(tuple(drafted), self.name) if drafted else None


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine answered, and how fast."""

    answers: dict[str, list[int]]
    tokens_per_s: float
    step_ms: dict[str, float]
    """Of a step, by phase: the forward, and what is outside it."""


def serve(engine: Engine, at_once: int, choice: SpeculationChoice, label: str) -> Served:
    """Answer `at_once` requests together, greedily."""
    answers: dict[str, list[int]] = {str(i): [] for i in range(at_once)}
    for i in range(at_once):
        chance = random.Random(i)
        prompt = tuple(chance.randrange(3, 500) for _ in range(PROMPT))
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
        request = GenerateRequest(f"{label}-{i}", prompt, params, speculation=choice)
        engine.send(Submit(request, time.monotonic()))
    steps, totals = engine.timings.num_steps, engine.timings.totals.phases()
    running, began = at_once, time.perf_counter()
    while running:
        for event in engine.step():
            if isinstance(event, Tokens):
                answers[event.request_id.rpartition("-")[2]] += event.token_ids
            assert not isinstance(event, Failed), event
            running -= isinstance(event, Finished)
    seconds = time.perf_counter() - began
    num_steps = engine.timings.num_steps - steps
    phases = {name: (after - totals[name]) / num_steps * 1000 for name, after in engine.timings.totals.phases().items()}
    return Served(answers, sum(map(len, answers.values())) / seconds, phases)


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def milliseconds(run: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> list[float]:
    """Time `run` after three passes that warm it up."""
    found = []
    for _ in range(3 + repeats):
        sync(device)
        start = time.perf_counter()
        run()
        sync(device)
        found.append(1000 * (time.perf_counter() - start))
    return found[3:]


def bandwidth(device: torch.device) -> float:
    """Return the bytes per second at which the device reads and writes a tensor."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / (statistics.median(milliseconds(lambda: target.copy_(source), device)) / 1000)


def sequences(count: int, rows: int, context: int) -> Batch:
    """Return a batch of `count` sequences with `rows` new tokens each."""
    pages = -(-(context + rows) // PAGE_SIZE)
    return pack(
        [
            SequenceInput(
                [(7 * i + 11 * j) % 400 + 3 for j in range(rows)],
                context,
                list(range(i * pages, (i + 1) * pages)),
                keep_last=rows,
            )
            for i in range(count)
        ]
    )


def graphs(model: TargetModel) -> dict[str, object]:
    """Compare replayed graphs with the eager pass."""
    if not isinstance(model, GraphedLean):
        return {"skipped": f"no graphs on {model.info.forward}"}
    found: dict[str, object] = {}
    for count, rows in ((1, 1), (1, 8), (4, 4), (16, 1), (16, 4)):
        batch, cache = sequences(count, rows, 48), model.make_cache(count * 8)
        eager = LeanModel.forward(model, batch, cache)
        replayed = [model.forward(batch, cache).clone() for _ in range(3)]
        difference = max(float((one - eager).abs().max()) for one in replayed)
        found[f"{count}x{rows}"] = {
            "bits_equal": all(torch.equal(one, eager) for one in replayed),
            "greatest_difference": difference,
            "greatest_logit": float(eager.abs().max()),
            "argmax_equal": float((replayed[0].argmax(-1) == eager.argmax(-1)).float().mean()),
        }
    return found


def rows_alone(model: TargetModel) -> dict[str, object]:
    """Compare a row's logits alone, in a batch, and among the rows of a draft."""
    found: dict[str, object] = {}
    whole = sequences(16, 1, 32)
    together = model.forward(whole, model.make_cache(16 * 8)).clone()
    fewer = [model.forward(sequences(i + 1, 1, 32), model.make_cache(16 * 8))[-1:].clone() for i in range(16)]
    found["in a batch"] = _compared(together, torch.cat(fewer))
    draft = sequences(1, 8, 32)
    verified = model.forward(draft, model.make_cache(8)).clone()
    cache, single = model.make_cache(8), []
    for i in range(8):
        one = pack([SequenceInput([int(draft.token_ids[i])], 32 + i, list(range(8)))])
        single.append(model.forward(one, cache).clone())
    found["in a draft"] = _compared(verified, torch.cat(single))
    return found


def _compared(found: Tensor, expected: Tensor) -> dict[str, object]:
    same = [torch.equal(a, b) for a, b in zip(found, expected, strict=True)]
    ends = (found.argmax(-1) == expected.argmax(-1)).float().mean()
    return {"rows_equal": sum(same), "rows": len(same), "argmax_equal": float(ends)}


def passes(model: TargetModel, device: torch.device, rate: float) -> dict[str, object]:
    """Time passes by rows, of one sequence and of as many as rows: milliseconds, over one row, over the floor.

    The floor is the time in which the memory gives all weights once.
    """
    info = model.info
    floor = 1000 * info.weight_bytes / rate
    found: dict[str, object] = {
        "bandwidth_gib_s": rate / GIB,
        "weights_gib": info.weight_bytes / GIB,
        "floor_ms": floor,
    }
    for name, is_draft in (("draft", True), ("batch", False)):
        times = {}
        for rows in ROWS:
            batch = sequences(1, rows, CONTEXT) if is_draft else sequences(rows, 1, CONTEXT)
            forward = partial(model.forward, batch, model.make_cache(int(batch.pages.max()) + 1))
            times[rows] = statistics.median(milliseconds(forward, device))
        found[name] = {rows: [ms, ms / times[1], ms / floor] for rows, ms in times.items()}
    return found


def drafts(loaded: LoadedModel, acceptance: float, counts: Sequence[int]) -> dict[str, object]:
    """Serve plain and with drafts of a stated acceptance, in turns; only the oracle drafts."""
    oracle = Oracle(acceptance)
    kept, FREE_PROPOSERS["suffix"] = FREE_PROPOSERS["suffix"], lambda *_: oracle
    try:
        pages = max(counts) * -(-(PROMPT + ANSWER + 64) // PAGE_SIZE)
        memory = pages * loaded.model.info.page_bytes
        settings = {"proposers": ("suffix",), "kv_memory": str(memory), "max_requests": max(counts)}
        config = EngineConfig.model_validate({**settings, "prefix_cache": False})
        engine = assemble(config, loaded)
    finally:
        FREE_PROPOSERS["suffix"] = kept
    found: dict[str, object] = {}
    for count in counts:
        oracle.answers = {}
        first = serve(engine, count, SpeculationChoice("off"), "first")
        oracle.answers = dict(first.answers)
        ratios, plains, speculated = [], [], []
        for i in range(3):
            plains.append(serve(engine, count, SpeculationChoice("off"), f"plain{i}"))
            speculated.append(serve(engine, count, SpeculationChoice(), f"auto{i}"))
            ratios.append(speculated[-1].tokens_per_s / plains[-1].tokens_per_s)
        found[str(count)] = {
            "plain_tokens_per_s": statistics.median(one.tokens_per_s for one in plains),
            "auto_tokens_per_s": statistics.median(one.tokens_per_s for one in speculated),
            "auto_over_plain": sorted(ratios),
            "answers_equal": sum(speculated[0].answers[key] == answer for key, answer in first.answers.items()),
            "plain_answers_equal": sum(plains[0].answers[key] == answer for key, answer in first.answers.items()),
            "answers": count,
            "step_ms": {"plain": plains[-1].step_ms, "auto": speculated[-1].step_ms},
        }
    return found


def main() -> None:
    given = options(__doc__, shapes="1b,8b", device="cuda", acceptance=0.8, minutes=8.0)
    device, end = pick_device(given.device), time.monotonic() + 60 * given.minutes
    answers: dict[str, object] = {"provenance": provenance({}, {}), "device": str(device)}
    if device.type == "cuda":
        answers["gpu"] = torch.cuda.get_device_name(device)
    rate = bandwidth(device)
    for name in given.shapes.split(","):
        loaded = random_model(name, device)
        questions: dict[str, Callable[[], object]] = {
            "graphs": partial(graphs, loaded.model),
            "rows": partial(rows_alone, loaded.model),
            "passes": partial(passes, loaded.model, device, rate),
            "drafts": partial(drafts, loaded, given.acceptance, AT_ONCE),
        }
        for question, ask in questions.items():
            answer = ask() if time.monotonic() < end else {"skipped": "no time left"}
            answers[f"{name}: {question}"] = answer
            print(f"{name}: {question}\n{json.dumps(answer, indent=1)}", flush=True)
            if given.json:
                given.json.write_text(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main()
