"""The self-check distinguishes a forward whose rows depend on each other from one whose rows do not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.exactness import SMALL, decide
from prolepsis.engine.models.protocol import Batch, KVCache
from tests.fakes import TableModel


class CompanyModel(TableModel):
    """Adds a rounding error where `disturbed` says so, as a kernel that changes with the shape of the pass would."""

    def disturbed(self, batch: Batch) -> bool:
        raise NotImplementedError

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        logits = super().forward(batch, cache)
        return logits + 1e-6 if self.disturbed(batch) else logits


class ManyRows(CompanyModel):
    def disturbed(self, batch: Batch) -> bool:
        return batch.num_tokens == 16 and batch.num_sequences == 1


class Neighbours(CompanyModel):
    def disturbed(self, batch: Batch) -> bool:
        return batch.num_sequences > 1


class Branches(CompanyModel):
    def disturbed(self, batch: Batch) -> bool:
        return batch.parents.tolist() != list(range(-1, batch.num_tokens - 1)) and batch.num_sequences == 1


def test_an_invariant_forward_is_strict() -> None:
    exactness = decide(TableModel(), "auto")
    assert exactness.mode == "strict"
    assert "bitwise" in exactness.reason


@pytest.mark.parametrize(
    ("model", "where"),
    [
        (ManyRows(), "between 1 row and 16"),
        (Neighbours(), "next to another sequence"),
        (Branches(), "on a branch of a tree"),
    ],
)
def test_a_forward_that_is_not_runs_in_normal_mode_and_says_where_it_differs(model: CompanyModel, where: str) -> None:
    exactness = decide(model, "auto")
    assert exactness.mode == "normal"
    assert where in exactness.reason


class ShortContext(TableModel):
    def __init__(self, max_positions: int) -> None:
        super().__init__()
        self.info = replace(self.info, max_positions=max_positions)


def test_only_the_contexts_that_were_tested_are_claimed() -> None:
    exactness = decide(ShortContext(64), "auto")
    assert exactness.mode == "strict"
    assert exactness.reason.endswith("at contexts 1, 29, 32"), "32 rows after it end the context"


@pytest.mark.parametrize(("promise", "contexts"), [("a promise", "29, 101"), ("", "1, 29, 101, 256")])
def test_a_large_model_whose_forward_promises_it_is_checked_briefly(promise: str, contexts: str) -> None:
    model = TableModel()
    model.info = replace(model.info, weight_bytes=SMALL, invariant_by=promise)
    assert decide(model, "auto", fresh=True).reason.endswith(f"at contexts {contexts}")


def test_a_check_that_takes_long_is_ended_and_says_so(tmp_path: Path) -> None:
    """A start without native kernels sat in its self-check for 17 minutes."""
    model, file = TableModel(), tmp_path / "passed.json"
    exactness = decide(model, "auto", file, budget_s=0.0)
    assert exactness.mode == "strict", "the forward promises it"
    ended = "it was ended after 1 of 256 comparisons in 0 s, between 1 row and 2 at context 1"
    assert exactness.reason.endswith(ended)
    passes = model.num_passes
    assert decide(model, "auto", file) == exactness
    assert model.num_passes == passes, "the next start is not held up again"
    assert "ended" not in decide(model, "auto", file, fresh=True).reason


def test_a_forward_that_promises_nothing_is_not_checked_at_every_start() -> None:
    model = unproven()
    exactness = decide(model, "auto")
    assert exactness.mode == "normal"
    assert exactness.reason.endswith("no self-check was run, as none could promise them")
    assert model.num_passes == 1, "whether its logits are numbers"
    damaged = Damaged()
    damaged.info = model.info
    assert decide(damaged, "auto").reason == "self-check: logits are not finite at context 0"


def test_a_model_too_short_to_be_tested_is_not_strict() -> None:
    exactness = decide(ShortContext(32), "auto")
    assert exactness.mode == "normal"
    assert "too short for the check, which needs 33" in exactness.reason


class Damaged(TableModel):
    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        logits = super().forward(batch, cache)
        logits[:, 3] = torch.nan
        return logits


def test_logits_that_are_no_numbers_are_named() -> None:
    exactness = decide(Damaged(), "auto")
    assert exactness.mode == "normal"
    assert exactness.reason == "self-check: logits are not finite at context 0"


def test_strict_asked_for_and_not_held_is_an_error() -> None:
    with pytest.raises(ModelLoadError, match="strict is 'on', but logits differ"):
        decide(ManyRows(), "on")


def unproven() -> TableModel:
    """A forward that passes the check and promises nothing."""
    model = TableModel()
    model.info = replace(model.info, invariant_by="")
    return model


def test_a_passed_check_alone_is_not_strict(tmp_path: Path) -> None:
    file = tmp_path / "passed.json"
    for _ in range(2):
        exactness = decide(unproven(), "auto", file, fresh=True)
        assert exactness.mode == "normal"
        assert "nothing promises the same bits for all rows and contexts of table" in exactness.reason
        assert "bitwise the same logits for 1 row and 2, 3" in exactness.reason
    with pytest.raises(ModelLoadError, match="strict is 'on', but nothing promises the same bits"):
        decide(unproven(), "on", file)


def test_strict_off_is_normal_for_every_model() -> None:
    assert decide(TableModel(), "off").mode == "normal"


def test_a_check_that_was_passed_is_kept_and_not_repeated(tmp_path: Path) -> None:
    model, file = TableModel(), tmp_path / "checks" / "passed.json"
    measured = decide(model, "auto", file)
    passes = model.num_passes
    assert passes > 0
    assert decide(model, "auto", file) == measured
    assert model.num_passes == passes
    assert decide(model, "auto", file, fresh=True) == measured
    assert model.num_passes == 2 * passes


def test_a_check_that_was_not_passed_is_repeated(tmp_path: Path) -> None:
    file = tmp_path / "passed.json"
    assert decide(ManyRows(), "auto", file).mode == "normal"
    assert decide(TableModel(), "auto", file).mode == "strict"


def test_a_check_of_fewer_contexts_does_not_count_for_more(tmp_path: Path) -> None:
    file = tmp_path / "passed.json"
    decide(ShortContext(64), "auto", file)
    model = TableModel()
    decide(model, "auto", file)
    assert model.num_passes > 0
