"""The default model as it is pulled: its tokenizer, its template, and the lean forward against transformers' class."""

from pathlib import Path

import pytest
import torch

from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.errors import FetchError
from prolepsis.models.files.store import Store
from prolepsis.models.files.tokenizer import Tokenizer, load_tokenizer
from prolepsis.models.files.weights import open_checkpoint
from prolepsis.models.targets.general import GeneralModel
from prolepsis.models.targets.lean import LeanModel
from prolepsis.models.targets.lean_shape import LeanShape
from tests.models.tiny import one, run

pytestmark = pytest.mark.real_model
CHAT = [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture(scope="module")
def path() -> Path:
    store = Store()
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
def tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


def test_its_tokenizer_splits_digits_and_keeps_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    digits = [tokenizer.decode([token]) for token in tokenizer.encode("2026")]
    assert digits == ["2", "0", "2", "6"]
    for text in ("Hello, wörld!\n\n  def f(x):\n\treturn x**2", "你好 🙂"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_its_template_writes_the_turns(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.apply_chat_template(CHAT)
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    assert text.endswith("<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token_ids == (tokenizer.vocab["<|im_end|>"],)


@torch.no_grad()
def test_the_lean_forward_agrees_with_the_class(path: Path, tokenizer: Tokenizer) -> None:
    checkpoint, cpu = open_checkpoint(path, torch.float32), torch.device("cpu")
    lean = LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), "default", cpu)
    general = GeneralModel(checkpoint, "default", cpu, torch.float32)
    tokens = tokenizer.apply_chat_template(CHAT)
    ours = run(lean, lean.make_cache(2), one(tokens, 0, [1, 0]))
    theirs = run(general, general.make_cache(2), one(tokens, 0, [0, 1]))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-3)
    assert tokenizer.decode([int(ours[-1].argmax())]) == "1"
