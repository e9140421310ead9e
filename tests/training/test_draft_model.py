"""A draft model's training: what it learns, what it leaves behind, and that it continues as if never interrupted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from transformers import LlamaConfig, LlamaForCausalLM

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.build import assemble
from prolepsis.engine.models.draft_models import list_draft_models
from prolepsis.engine.models.heads.format import weights_checksum
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.engine.models.provenance import provenance_of
from prolepsis.engine.models.targets.lean import rms_norm
from prolepsis.server.cli.models import describe_drafter
from prolepsis.training.batches import TargetEnds
from prolepsis.training.data import TrainingDocument
from prolepsis.training.draft_model import DraftModelTask, DraftModelTraining, initial_model, narrowed
from prolepsis.training.losses import LossVocabulary
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import DraftModelSize
from prolepsis.training.target import Target, open_target
from prolepsis.training.trainer import TrainingProgress
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.exact.oracle import serve
from tests.fakes import outputs, terminals
from tests.training.documents import HIDDEN, VOCAB, random_document
from tests.training.language import FIRST, LETTERS, language_run, next_token, tiny_recipe
from tests.training.targets import config_of, save_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return open_target(str(save_target(tmp_path_factory.mktemp("target"))))


@pytest.fixture(scope="module")
def trained(target: Target, tmp_path_factory: pytest.TempPathFactory) -> DraftModelTraining:
    place = language_run(target, tmp_path_factory.mktemp("root") / "out")
    training = DraftModelTraining(place, target, tiny_recipe(epochs=30.0))
    list(training.steps())
    return training


def test_a_deterministic_language_is_learned(trained: DraftModelTraining) -> None:
    first, last = trained.trainer.history[0], trained.trainer.history[-1]
    assert last.loss < first.loss
    assert min(last.rates) > 0.95
    assert last.length > 3.8
    with torch.no_grad():
        tokens = torch.arange(FIRST, FIRST + LETTERS)[:, None]
        guesses = trained.model(input_ids=tokens, use_cache=False).logits[:, -1].argmax(-1)
    right = guesses == torch.tensor([next_token(int(token)) for token in tokens])
    assert right.float().mean() > 0.9, "over the whole vocabulary, tokens that the loss only samples included"


def test_the_trained_model_loads_with_its_provenance(trained: DraftModelTraining, target: Target) -> None:
    folder = trained.directory.exported
    provenance = provenance_of(folder)
    assert provenance is not None
    assert (provenance.target, provenance.target_fingerprint) == (target.name, target.identity)
    assert provenance.tokenizer_fingerprint == target.tokenizer.fingerprint
    assert provenance.sha256 == weights_checksum(folder)
    assert provenance.chain_of_3 == pytest.approx(trained.trainer.history[-1].length)
    assert provenance.training["settings"]["hidden"] == 32
    (entry,) = list_draft_models(folder.parent)
    assert (entry.name, entry.target) == ("model", target.name)
    assert describe_drafter(entry, None)["checksum"] == "matches"
    assert "Held-out acceptance" in trained.directory.report.read_text()
    assert (folder / "README.md").read_text().startswith(f"# Draft model for {target.name}")
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}


@pytest.mark.parametrize("forward", ["lean", pytest.param("native", marks=NEEDS_KERNELS)])
def test_logits_of_the_export_are_the_trained_ones(trained: DraftModelTraining, forward: str) -> None:
    from prolepsis.engine.models.protocol import SequenceInput, pack

    model = load_model(_config(trained, forward), str(trained.directory.exported)).model
    tokens = [FIRST + i for i in range(9)]
    logits = model.forward(pack([SequenceInput(tokens, 0, [0], keep_last=9)]), model.make_cache(1))
    with torch.no_grad():
        expected = trained.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.25)


def _config(trained: DraftModelTraining, forward: str = "lean") -> EngineConfig:
    config = config_of(Path(trained.target.path))
    return config.model_copy(
        update={"forward": forward, "strict": "off", "draft_model": str(trained.directory.exported)}
    )


@pytest.fixture(scope="module")
def loaded(trained: DraftModelTraining) -> Iterator[tuple[LoadedModel, LoadedModel]]:
    threads = torch.get_num_threads()
    config = _config(trained)
    yield load_model(config), load_model(config, config.draft_model)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_drafts_in_the_engine(
    trained: DraftModelTraining, loaded: tuple[LoadedModel, LoadedModel], temperature: float
) -> None:
    config, (model, draft) = _config(trained), loaded
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=24, ignore_eos=True)
    request = GenerateRequest("r", tuple(range(FIRST, FIRST + 20)), params)
    drafted = serve(assemble(config, model, draft), request, plan=SpecPlan(fixed_depth=3, proposers=("draft_model",)))
    [tokens] = outputs(drafted).values()
    assert len(tokens) == 24  # which ones is not promised on this forward, whose rows depend on their neighbours
    (end,) = terminals(drafted).values()
    assert end.stats.num_draft_tokens > 0


def test_a_resumed_training_ends_as_one_that_ran_through(target: Target, tmp_path: Path) -> None:
    weights = []
    recipe = tiny_recipe(epochs=4.0, frequent=64, sampled=30, measure_every=14)
    for name, interrupted in (("whole", False), ("parts", True)):
        place = language_run(target, tmp_path / name)
        training = DraftModelTraining(place, target, recipe)
        for done in training.steps():
            if interrupted and done.measured is not None:
                break
        if interrupted:
            training = DraftModelTraining(place, target, recipe)
            assert training.trainer.history[-1].step == done.step < training.trainer.num_steps
            list(training.steps())
        weights.append(training.model.state_dict())
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, msg=name)


def test_data_of_another_target_are_refused(target: Target, tmp_path: Path) -> None:
    place = language_run(target, tmp_path / "out", documents=3)
    manifest = json.loads((place.data / "manifest.json").read_text())
    (place.data / "manifest.json").write_text(json.dumps({**manifest, "fingerprint": "other"}))
    with pytest.raises(ConfigError, match="not of"):
        DraftModelTraining(place, target, tiny_recipe())


def test_a_head_and_a_draft_model_share_data_and_nothing_else(tmp_path: Path) -> None:
    head, model = RunDirectory(tmp_path), RunDirectory(tmp_path, "model")
    assert head.data == model.data
    for name in ("checkpoint", "vocabulary", "exported", "result", "report"):
        assert getattr(head, name) != getattr(model, name)


@pytest.mark.parametrize(("hidden", "layers"), [(48, 1), (0, 1), (64, 0)])
def test_sizes_that_no_forward_takes_are_refused(hidden: int, layers: int) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        DraftModelSize(layers, hidden)


def test_a_model_wider_than_its_target_is_refused(target: Target) -> None:
    with pytest.raises(ConfigError, match="up to the target's 64"):
        initial_model(target, DraftModelSize(1, 96), torch.zeros(target.shape.vocab))


def test_a_narrowed_embedding_keeps_what_frequent_tokens_differ_in() -> None:
    torch.manual_seed(0)
    embedding = (
        torch.randn(50, 6) * torch.tensor([3.0, 2.0, 1.0, 0.0, 0.0, 0.0]) @ torch.linalg.qr(torch.randn(6, 6))[0]
    )
    narrow = narrowed(embedding, 3, torch.zeros(50))
    torch.testing.assert_close(narrow @ narrow.t(), embedding @ embedding.t(), rtol=1e-3, atol=1e-3)
    counts = torch.zeros(50)
    counts[7] = 1e12
    assert float(narrowed(embedding, 1, counts)[7].norm()) == pytest.approx(float(embedding[7].norm()), rel=1e-3)


def _model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


def _ends() -> TargetEnds:
    generator = torch.Generator().manual_seed(5)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    return TargetEnds(embedding, torch.rand(HIDDEN, generator=generator) + 0.5, embedding, 1e-5)


def _plain_loss(model: LlamaForCausalLM, documents: list[TrainingDocument], ends: TargetEnds) -> torch.Tensor:
    """Mean over anchors of -sum(p log q), each document run whole by the class itself."""
    losses = []
    for document in documents:
        first = document.response_start - 1
        logits = model(input_ids=document.tokens.long()[None], use_cache=False).logits[0, first:]
        states = rms_norm(document.features[first:, 3 * HIDDEN :].float(), ends.final_norm, ends.eps)
        wanted = torch.softmax(states @ ends.head.t(), dim=-1)
        losses.append(-(wanted * F.log_softmax(logits, dim=-1)).sum(-1))
    return torch.cat(losses).mean()


@pytest.mark.parametrize(("workers", "rows"), [(1, 256), (2, 5)])
def test_loss_and_gradients_over_all_tokens(workers: int, rows: int) -> None:
    documents = [random_document(17, 4, number=1), random_document(9, 1, number=2), random_document(12, 8, number=3)]
    model, ends = _model(), _ends()
    vocabulary = LossVocabulary.of(torch.arange(VOCAB), VOCAB, num_sampled=0)
    task = DraftModelTask(model, ends, vocabulary, workers=workers, rows_at_once=rows)
    result = task.gradients(documents, TrainingProgress(0, 0.0))
    expected = _plain_loss(model, documents, ends)
    assert result.loss == pytest.approx(float(expected.detach()), rel=1e-4)
    assert result.rows == [14 + 9 + 5]
    for found, plain in zip(result.gradients, torch.autograd.grad(expected, list(task.trained)), strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-6)


def test_sampled_tokens_stand_for_all_others_on_average() -> None:
    torch.manual_seed(0)
    logits = torch.randn(VOCAB)
    vocabulary = LossVocabulary.of(torch.arange(0, VOCAB, 4), VOCAB, num_sampled=30, seed=1)
    sums = [(logits[step.ids] + step.offsets).exp().sum() for step in map(vocabulary.at, range(2000))]
    assert float(torch.stack(sums).mean()) == pytest.approx(float(logits.exp().sum()), rel=0.02)
    assert torch.equal(vocabulary.at(3).ids, vocabulary.at(3).ids)
    assert not torch.equal(vocabulary.at(3).ids, vocabulary.at(4).ids)
    assert len(set(vocabulary.at(0).ids.tolist())) == VOCAB // 4 + 30


def test_measured_chains_are_those_that_the_model_drafts() -> None:
    model, ends = _model(), _ends()
    document = random_document(14, 4)
    with torch.no_grad():
        for i in range(5, 14):  # make some of the document the model's own greedy text
            if i % 4:
                guess = model(input_ids=document.tokens[:i].long()[None], use_cache=False).logits[0, -1].argmax()
                document.tokens[i] = int(guess)
    task = DraftModelTask(model, ends, LossVocabulary.of(torch.arange(VOCAB), VOCAB, num_sampled=0))
    counts = task.measure([document])["all"]
    hits, trials = [0] * 5, [0] * 5
    text = document.tokens.tolist()
    for anchor in range(4, 15):
        drafted = list(text[:anchor])
        for j in range(5):
            if anchor + j >= len(text):
                break
            trials[j] += 1
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([drafted]), use_cache=False).logits
            drafted.append(int(logits[0, -1].argmax()))
            if drafted[-1] != text[anchor + j]:
                break
            hits[j] += 1
    assert (counts.hits, counts.trials) == (hits, trials)
    assert sum(hits) > 5
