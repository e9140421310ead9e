"""The search of an early exit: what it counts, what it predicts, and what it finds on models built to be known."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.calibration import MAX_DEPTH, Calibration
from prolepsis.engine.exit_search import candidate_layers, figures, keep_layer, kept_layer, search, survivals
from prolepsis.models.files.weights import open_checkpoint
from prolepsis.models.protocol import SequenceInput, pack
from prolepsis.models.targets.early_exit import make_exit
from prolepsis.models.targets.lean import LeanModel
from prolepsis.models.targets.lean_shape import LeanShape
from prolepsis.sampling.noise import gumbel, noise_key
from prolepsis.spec.proposers.early_exit import EarlyExitProposer
from tests.fakes import TableModel
from tests.models.tiny import save_tiny

PROMPTS = [[5, 9, 11, 7], [3], list(range(3, 40))]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=20, seed=4)


@cache
def tiny(idle_layers: int = 0) -> LeanModel:
    """Four random layers, the last `idle_layers` of which change nothing."""
    with TemporaryDirectory() as folder:
        model = save_tiny(Path(folder), "llama", {"num_hidden_layers": 4})
        weights = dict(model.named_parameters())
        for layer in range(4 - idle_layers, 4):
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                weights[f"model.layers.{layer}.{name}.weight"].data.zero_()
        model.save_pretrained(folder)
        checkpoint = open_checkpoint(Path(folder), torch.float32)
        return LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), "tiny", torch.device("cpu"))


def test_layers_are_spread_over_the_model_short_of_the_last() -> None:
    assert candidate_layers(30) == [1, 2, 5, 8, 10, 12, 15, 18, 20, 22, 25, 28]
    assert candidate_layers(4) == [1, 2, 3]
    assert candidate_layers(2) == [1]


def test_survivals_are_shares_of_places_with_the_whole_depth_ahead() -> None:
    right = [True, True, False, True, True, True, True, True, True]  # runs at the first 4 places: 2, 1, 0, 6
    assert survivals([right]) == (0.75, 0.5, 0.25, 0.25, 0.25, 0.25)
    assert survivals([right, [True] * (MAX_DEPTH - 1)]) == survivals([right])
    assert survivals([[]]) == (0.0,) * MAX_DEPTH


def test_predicted_speed_up_is_tokens_over_time() -> None:
    found = figures(3, (0.8, 0.6), 2.0, [10.0, 11.0, 12.0])
    assert found.speedups == pytest.approx((1.8 * 10 / 13, 2.4 * 10 / 16))
    assert found.depth == 2
    assert found.speedup == pytest.approx(1.5)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_texts_are_what_the_target_says(params: SamplingParams) -> None:
    model = tiny()
    for i, text in enumerate(Calibration(model, PROMPTS, params).texts):
        grown = list(PROMPTS[i])
        while len(grown) < len(text.tokens):
            logits = model.forward(pack([SequenceInput(grown, 0, [0, 1])]), model.make_cache(2))[0]
            noise = gumbel(noise_key(params.seed, i), len(grown) - len(PROMPTS[i]), torch.arange(len(logits)))
            grown.append(int((logits if params.greedy else logits / params.temperature + noise).argmax()))
        assert text.tokens == grown
        assert text.num_output_tokens == params.max_tokens or grown[-1] in model.info.eos_token_ids


def test_what_is_counted_right_is_what_the_proposer_would_have_right() -> None:
    model = tiny()
    calibration, early = Calibration(model, PROMPTS, SAMPLED), make_exit(model, 3, 160)
    proposer = EarlyExitProposer(early, calibration._cache, first_page=calibration._end, max_samples=1)
    some_right = False
    for text, right in zip(calibration.texts, calibration.right(early), strict=True):
        whole = list(text.tokens)
        for place in range(len(right) - 3):
            text.tokens = whole[: text.num_prompt_tokens + place]
            draft = proposer.propose([text], [3])[0]
            assert draft is not None
            follows = [a == b for a, b in zip(draft.tokens, whole[len(text.tokens) :], strict=False)]
            run = next((i for i, same in enumerate(follows) if not same), 3)
            assert right[place : place + run] == [True] * run
            assert run == 3 or not right[place + run]
            some_right |= run > 0
    assert some_right


def test_an_exit_below_idle_layers_is_always_right() -> None:
    found = search(tiny(idle_layers=2), PROMPTS, GREEDY, vocab_size=160)
    assert [each.num_layers for each in found.exits] == [1, 2, 3]
    assert [each.survivals[-1] == 1.0 for each in found.exits] == [False, True, True]
    assert (found.vocab_size, found.coverage) == (160, 1.0)
    assert list(found.pass_ms) == sorted(found.pass_ms)
    assert found.best.speedup == max(max(each.speedups) for each in found.exits)
    assert found.worth_it == (found.best.speedup >= 1.05)


def test_a_forward_that_cannot_stop_early_is_refused() -> None:
    model = TableModel()
    model.info = tiny().info
    with pytest.raises(ModelLoadError, match="cannot stop early"):
        search(model, PROMPTS, GREEDY)


def test_a_layer_is_kept_and_found_again(tmp_path: Path) -> None:
    file = tmp_path / "new" / "layer.json"
    assert kept_layer(file) is None
    keep_layer(file, 5)
    assert kept_layer(file) == 5
    file.write_text("[]")
    assert kept_layer(file) is None
