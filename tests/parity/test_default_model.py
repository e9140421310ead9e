"""The default model as it is pulled: its tokenizer, its template, and the lean forward against transformers' class."""

from pathlib import Path

import pytest
import torch

from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.errors import FetchError
from prolepsis.engine.models.files.quality import measured_quality
from prolepsis.engine.models.files.store import ModelStore
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.general import GeneralModel
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.lab.measure.prompts import load_prompts
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.tiny import one, run

pytestmark = pytest.mark.real_model
CHAT = [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture(scope="module")
def path() -> Path:
    store = ModelStore()
    if (found := store.path(DEFAULT_MODEL)) is not None:
        return found
    try:
        store.pull(DEFAULT_MODEL)
    except FetchError as error:
        pytest.skip(f"the default model is not here and cannot be pulled: {error}")
    pulled = store.path(DEFAULT_MODEL)
    assert pulled is not None
    return pulled


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> ModelTokenizer:
    return load_tokenizer(path)


def test_its_tokenizer_splits_digits_and_keeps_text(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    digits = [tokenizer.decode([token]) for token in tokenizer.encode("2026")]
    assert digits == ["2", "0", "2", "6"]
    for text in ("Hello, wörld!\n\n  def f(x):\n\treturn x**2", "你好 🙂"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_its_template_writes_the_turns(tokenizer: ModelTokenizer) -> None:
    prompt = tokenizer.apply_chat_template(CHAT)
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    assert text.endswith("<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token_ids == tuple(
        tokenizer.vocab[end] for end in ("<|im_end|>", "<|endoftext|>", "<reponame>")
    )


@torch.no_grad()
def test_the_lean_forward_agrees_with_the_class(path: Path, tokenizer: ModelTokenizer) -> None:
    checkpoint, cpu = open_checkpoint(path, torch.float32), torch.device("cpu")
    lean = LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), "default", cpu)
    general = GeneralModel(checkpoint, "default", cpu, torch.float32)
    tokens = tokenizer.apply_chat_template(CHAT)
    ours = run(lean, lean.make_cache(2), one(tokens, 0, [1, 0]))
    theirs = run(general, general.make_cache(2), one(tokens, 0, [0, 1]))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-3)
    assert tokenizer.decode([int(ours[-1].argmax())]) == "1"


@NEEDS_KERNELS
@torch.no_grad()
def test_the_recorded_quality_is_that_of_the_forward(path: Path, tokenizer: ModelTokenizer) -> None:
    """Other text than the record's, so within a factor of two: rows rounded more coarsely would be outside."""
    text = "\n\n".join(prompt.text for prompt in load_prompts(None))
    tokens, pages = tokenizer.encode(text)[:384], list(range(12))
    exact, stored = open_checkpoint(path, torch.float32), open_checkpoint(path)
    shape = LeanShape.from_config(exact.config)
    lean = LeanModel(exact, shape, "default", torch.device("cpu"))
    expected = run(lean, lean.make_cache(12), one(tokens, 0, pages)).log_softmax(-1)
    recorded = {measured.computation: measured.kl for measured in measured_quality(path)}
    for int8 in (True, False):
        native = NativeModel(stored, shape, "default", threads=1, int8_activations=int8)
        found = run(native, native.make_cache(12), one(tokens, 0, pages)).log_softmax(-1)
        kl = float((expected.exp() * (expected - found)).sum(-1).mean())
        assert 0.5 < kl / recorded[native.info.computation] < 2, native.info.computation
