"""The distillation loss against its formula over the whole vocabulary, in value and gradient."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from transformers import LlamaConfig, LlamaForCausalLM

from prolepsis.models.targets.lean import rms_norm
from prolepsis.train import draft_model as draft_model_student
from prolepsis.train.batches import TargetEnds
from prolepsis.train.draft_model import DraftModelStudent
from prolepsis.train.synthesis import Document
from prolepsis.train.trainer import Moment
from prolepsis.train.vocabulary import LossVocabulary
from tests.train.documents import HIDDEN, VOCAB, random_document


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


def _plain_loss(model: LlamaForCausalLM, documents: list[Document], ends: TargetEnds) -> torch.Tensor:
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
def test_loss_and_gradients_over_all_tokens(monkeypatch: pytest.MonkeyPatch, workers: int, rows: int) -> None:
    monkeypatch.setattr(draft_model_student, "ROWS", rows)
    documents = [random_document(17, 4, number=1), random_document(9, 1, number=2), random_document(12, 8, number=3)]
    model, ends = _model(), _ends()
    vocabulary = LossVocabulary.of(torch.arange(VOCAB), VOCAB, num_sampled=0)
    student = DraftModelStudent(model, ends, vocabulary, workers=workers)
    result = student.learn(documents, Moment(0, 0.0))
    expected = _plain_loss(model, documents, ends)
    assert result.loss == pytest.approx(float(expected.detach()), rel=1e-4)
    assert result.rows == [14 + 9 + 5]
    for found, plain in zip(result.gradients, torch.autograd.grad(expected, list(student.trained)), strict=True):
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
    student = DraftModelStudent(model, ends, LossVocabulary.of(torch.arange(VOCAB), VOCAB, num_sampled=0))
    counts = student.measure([document])["all"]
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
