"""Random small models, cut into steps at random: no row's bits depend on its company, and threads change none.

`PROLEPSIS_TEST_SHAPES` says how many models are drawn.
"""

import math
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.files.stored import BF16, PACKED
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.protocol import KVCache, SequenceInput, TargetModel, pack
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.random_matrices import random_matrix
from tests.engine.models.tiny import FAMILIES, one, rounded, run, save_tiny

NUM_SHAPES = int(os.environ.get("PROLEPSIS_TEST_SHAPES", "6"))
MOST_ROWS = 70
"""Of a sequence in a step: more than any kernel takes at once, and more than two pages."""
KINDS = [*FAMILIES, "llama", "qwen2", "qwen3"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A random model and how it is run."""

    name: str
    fields: dict[str, object]
    stored: tuple[int, ...]
    """Formats of its matrices; empty: as they are in the files."""
    int8: bool
    threads: int


def draw(dice: random.Random, *, native: bool) -> Drawn:
    name = dice.choice(KINDS)
    unit = 32 if native else 8
    width = 32 if native else 16
    group, kv_heads = dice.choice([1, 2, 3, 4, 7, 8]), dice.choice([1, 2, 3])
    stored = tuple(dice.sample([kind for kind in PACKED if kind != BF16], 3)) if native and dice.random() < 0.7 else ()
    fields: dict[str, object] = {
        "hidden_size": 256 if stored else math.lcm(unit, group * kv_heads) * dice.randint(1, 3),
        "intermediate_size": dice.choice([256, 512]) if stored else unit * dice.randint(1, 9),
        "head_dim": dice.choice([32, 64, 96, 128] if native else [8, 16, 24, 32, 80]),
        "num_attention_heads": group * kv_heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": dice.choice([160, 167, 256, 300]),
    }
    if stored:  # formats of 256 weights: the input of the output projection is as wide
        fields |= {
            "head_dim": dice.choice([32, 64, 128]),
            "num_attention_heads": 8,
            "num_key_value_heads": dice.choice([1, 2, 4, 8]),
        }
    if name == "qwen2":
        fields |= {"head_dim": None, "hidden_size": width * (8 if stored else group * kv_heads)}
    if name == "phi3" and native:
        fields["head_dim"] = 64  # half of it is rotated
    return Drawn(name, fields, stored, dice.random() < 0.7, dice.choice([1, 2, 3]))


@contextmanager
def drawn_checkpoint(drawn: Drawn) -> Iterator[Checkpoint]:
    kind, changes = FAMILIES.get(drawn.name, (drawn.name, {}))
    with TemporaryDirectory() as folder:
        save_tiny(Path(folder), kind, {**changes, **drawn.fields})
        checkpoint = open_checkpoint(Path(folder))
        matrices = {
            name: random_matrix(tensor.shape, drawn.stored[_place(name) % 3], i)
            for i, (name, tensor) in enumerate(checkpoint.tensors.items())
            if drawn.stored and tensor.ndim == 2
        }
        yield replace(checkpoint, stored=matrices)


def _place(name: str) -> int:
    """Number a matrix so that those of the feed-forward's gate and what it multiplies, which are one, are alike."""
    return sum(name.replace("gate_proj", "up_proj").encode())


def native_model(checkpoint: Checkpoint, drawn: Drawn, threads: int) -> TargetModel:
    shape = LeanShape.from_config(checkpoint.config)
    return NativeModel(checkpoint, shape, drawn.name, threads, int8_activations=drawn.int8)


class Text:
    """A sequence that is decoded in steps of random sizes, with its logits from decoding it one by one."""

    def __init__(self, target: TargetModel, cache: KVCache, pages: list[int], length: int, dice: random.Random) -> None:
        self.tokens = [dice.randrange(3, 160) for _ in range(length)]
        self.pages, self.done = pages, 0
        alone = [target.forward(pack([SequenceInput([t], i, pages)]), cache) for i, t in enumerate(self.tokens)]
        self.alone = torch.cat(alone)
        for page in pages:
            cache.clear_page(page)

    def part(self, dice: random.Random) -> tuple[SequenceInput, list[int], Tensor]:
        """Return its part of a step, the rows kept that are of its own tokens, and what is expected of them."""
        count = min(dice.choice([1, 2, 3, 5, 8, 17, MOST_ROWS]), len(self.tokens) - self.done)
        own = self.tokens[self.done : self.done + count]
        expected = self.alone[self.done : self.done + count]
        if count <= 8 and dice.random() < 0.5:  # with wrong branches: it is decoded again, as nothing is compacted here
            return self._tree(own, expected, dice)
        keep = dice.choice([count, 1, min(2, count)])
        part = SequenceInput(own, self.done, self.pages, keep_last=keep)
        self.done += count
        return part, list(range(keep)), expected[count - keep :]

    def _tree(self, own: list[int], expected: Tensor, dice: random.Random) -> tuple[SequenceInput, list[int], Tensor]:
        nodes, parents, places = list[int](), list[int](), list[int]()
        for token in own:
            parents.append(places[-1] if places else -1)
            places.append(len(nodes))
            nodes.append(token)
            for _ in range(dice.choice([0, 1, 2])):
                parents.append(dice.randrange(-1, len(nodes)))
                nodes.append(dice.randrange(3, 160))
        part = SequenceInput(nodes, self.done, self.pages, parents, keep_last=len(nodes))
        return part, places, expected


def check(target: TargetModel, other: TargetModel, dice: random.Random) -> None:
    """Compare decoding one by one on `other` with steps of several texts on `target`, to the bit."""
    lengths = [dice.randint(1, 3 * PAGE_SIZE + 40) for _ in range(3)]
    num_pages = max(-(-(length + 40) // PAGE_SIZE) for length in lengths)
    order = dice.sample(range(3 * num_pages), 3 * num_pages)
    cache, other_cache = target.make_cache(3 * num_pages), other.make_cache(3 * num_pages)
    texts = [Text(other, other_cache, order[i::3], length, dice) for i, length in enumerate(lengths)]
    while running := [text for text in texts if text.done < len(text.tokens)]:
        parts = [text.part(dice) for text in dice.sample(running, dice.randint(1, len(running)))]
        found = target.forward(pack([part for part, _, _ in parts]), cache)
        first = 0
        for part, places, expected in parts:
            got = found[first : first + part.keep_last][places]
            assert torch.equal(got, expected), (
                f"{(got - expected).abs().max():.1e} at {part.cached}, {len(part.token_ids)} rows"
            )
            first += part.keep_last


@NEEDS_KERNELS
@pytest.mark.parametrize("seed", range(NUM_SHAPES))
def test_rows_of_the_native_forward_have_the_same_bits_in_any_step(seed: int) -> None:
    dice = random.Random(seed)
    drawn = draw(dice, native=True)
    with drawn_checkpoint(drawn) as checkpoint:
        check(native_model(checkpoint, drawn, drawn.threads), native_model(checkpoint, drawn, 1), dice)


@pytest.mark.parametrize("seed", range(NUM_SHAPES))
def test_rows_of_the_lean_forward_have_the_same_bits_in_any_step(seed: int) -> None:
    """Torch promises it for no processor; here it holds, and the fastest kernels of others behave alike."""
    dice = random.Random(seed)
    drawn = draw(dice, native=False)
    with drawn_checkpoint(drawn) as checkpoint:
        target = LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), drawn.name, torch.device("cpu"))
        check(target, target, dice)


@pytest.mark.parametrize("forward", ["lean", pytest.param("native", marks=NEEDS_KERNELS)])
def test_a_drafted_token_without_numbers_spoils_no_row_that_does_not_see_it(forward: str) -> None:
    """The token's keys and values stand in the pages of its sequence, where they are weighed by 0."""
    damaged = 9
    with rounded("llama", {"head_dim": 32}) as (model, _), TemporaryDirectory() as folder:
        model.model.embed_tokens.weight.data[damaged] = torch.nan
        model.save_pretrained(folder)
        checkpoint = open_checkpoint(Path(folder))
        shape = LeanShape.from_config(checkpoint.config)
        target: TargetModel = (
            LeanModel(checkpoint, shape, "m", torch.device("cpu"))
            if forward == "lean"
            else NativeModel(checkpoint, shape, "m", threads=1)
        )
    cache, text, pages = target.make_cache(4), [5, 6, 7, 8, 10], [2, 0]
    alone = run(target, cache, one(text, 0, pages))
    cache = target.make_cache(4)
    run(target, cache, one(text[:3], 0, pages))
    drafted = run(target, cache, one([8, damaged, 11], 3, pages), one(text, 0, [1]))
    assert torch.equal(drafted[0], alone[3])
    assert drafted[1:3].isnan().all(), "what is after the token is none"
    assert torch.equal(drafted[3:], alone), "another sequence"
    tree = run(target, cache, one([8, damaged, 10], 3, pages, parents=[-1, 0, 0]))
    assert torch.equal(tree[[0, 2]], alone[3:])
    assert torch.equal(run(target, cache, one([10], 4, pages)), alone[4:])
