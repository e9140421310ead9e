"""The target writes its own data: what is recorded is what a pass over the text computes; it can be gone on with."""

from pathlib import Path

import pytest
import torch

from prolepsis.core.config import EngineConfig
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.training.data import TrainingDocument, read_manifest, shards_of
from prolepsis.training.prompts import OwnPrompt
from prolepsis.training.synthesis import DataRequest, SynthesisLimits, generate, loop_end, plain
from prolepsis.training.target import open_target
from tests.training.targets import config_of, save_target

AUX_LAYERS = (2, 2, 1, 4)
LIMITS = SynthesisLimits(concurrency=4, turn_tokens=12, answer_tokens=24, prompt_tokens=200)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return config_of(save_target(tmp_path_factory.mktemp("target")))


def _request(folder: Path, tokens: int, prompts: tuple[str, ...] = ()) -> DataRequest:
    return DataRequest(
        folder, tokens, AUX_LAYERS, [OwnPrompt(one) for one in prompts], limits=LIMITS, tokens_per_shard=400
    )


def _documents(folder: Path) -> list[TrainingDocument]:
    return [shard.read(index) for shard in shards_of(folder) for index in range(len(shard))]


def test_recorded_features_are_those_of_a_pass_over_the_text(config: EngineConfig, tmp_path: Path) -> None:
    totals: list[int] = []
    generate(config, _request(tmp_path, 1200), totals.append)
    documents = _documents(tmp_path)
    assert totals[-1] == sum(len(d.tokens) for d in documents) >= 1200
    model = load_model(plain(config, LIMITS.context)).model
    assert isinstance(model, LeanModel)
    for document in documents[:6]:
        count = len(document.tokens)
        cache = model.make_cache(16)
        batch = pack([SequenceInput(document.tokens.tolist(), 0, list(range(16)), keep_last=count)])
        logits, features = model.forward_features(batch, cache, AUX_LAYERS)
        torch.testing.assert_close(document.features, features, rtol=0.1, atol=0.05)  # bf16, other chunks
        if document.greedy:
            likeliest = logits.argmax(-1)[document.response_start - 1 : -1]
            same = likeliest == document.tokens[document.response_start :]
            assert same.float().mean() > 0.9


def test_generation_goes_on_where_it_stopped(config: EngineConfig, tmp_path: Path) -> None:
    generate(config, _request(tmp_path, 500), lambda _: None)
    before = {shard.file: shard.file.read_bytes() for shard in shards_of(tmp_path)}
    generate(config, _request(tmp_path, 1000), lambda _: None)
    documents = _documents(tmp_path)
    assert all(file.read_bytes() == content for file, content in before.items())
    assert len({d.number for d in documents}) == len(documents)
    assert sum(len(d.tokens) for d in documents) >= 1000
    assert read_manifest(tmp_path).aux_layers == AUX_LAYERS


def test_a_model_without_a_chat_template_goes_on_with_the_text(tmp_path: Path) -> None:
    config = config_of(save_target(tmp_path / "model", template=None))
    generate(config, _request(tmp_path / "data", 300, ("What is a bell?",)), lambda _: None)
    tokenizer = load_model(plain(config, LIMITS.context)).tokenizer
    (given,) = (d for d in _documents(tmp_path / "data") if d.kind == "given")
    assert tokenizer.decode(given.tokens[: given.response_start].tolist()) == "What is a bell?"
    assert open_target(config.model).preamble == 1


def test_the_users_prompts_come_first(config: EngineConfig, tmp_path: Path) -> None:
    generate(config, _request(tmp_path, 300, ("What is a bell?", "Name a colour.")), lambda _: None)
    given = [d for d in _documents(tmp_path) if d.kind == "given"]
    tokenizer = load_model(plain(config, LIMITS.context)).tokenizer
    texts = " ".join(tokenizer.decode(d.tokens[: d.response_start].tolist()) for d in given)
    assert "What is a bell?" in texts
    assert "Name a colour." in texts


@pytest.mark.parametrize("period", [1, 2, 7, 40])
def test_a_loop_is_cut_after_one_repetition(period: int) -> None:
    head = list(range(1000, 1020))
    loop = list(range(period))
    text = head + loop * max(3, 80 // period)
    end = loop_end(text)
    assert end is not None
    assert len(head) + 2 * period <= end < len(text) + 1
    assert text[:end][: len(head) + period] == head + loop


def test_plain_text_and_short_refrains_stay() -> None:
    assert loop_end(list(range(100))) is None
    assert loop_end([*range(50), 7, 8, 7, 8, 7, 8]) is None
    assert loop_end([]) is None
