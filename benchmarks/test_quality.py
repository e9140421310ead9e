"""Figures of quality on small cases with known answers."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from benchmarks.quality import CHUNK, ChunkFigures, chunks_of, compare, summarise, table
from benchmarks.quality_engines import Float32, Rounded, logits_of, open_engine, rounded
from prolepsis.core.errors import ConfigError
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from tests.engine.models.tiny import save_tiny
from tests.engine.text.test_tokenizer import byte_level


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, "llama", {})
    byte_level().save_pretrained(folder)
    return folder


def test_a_distribution_is_compared_with_the_reference() -> None:
    expected = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]).log()
    found = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6]]).log()
    figures = compare(expected, found, [0, 1])
    assert figures.kl == pytest.approx((0.5 * math.log(2) - 0.25 * math.log(2)) / 2)
    assert figures.agreement == 0.5
    assert figures.loss == pytest.approx(math.log(2))


def test_intervals_lie_around_means_and_ratios_are_paired() -> None:
    reference = [ChunkFigures(0.0, 1.0, loss) for loss in (1.0, 2.0, 3.0)]
    worse = [ChunkFigures(0.1, 0.9, one.loss + 0.5) for one in reference]
    found = summarise(worse, reference)
    assert found.kl == pytest.approx((0.1, 0.1, 0.1))
    assert found.perplexity == pytest.approx(math.exp(2.5))
    assert found.perplexity_ratio == pytest.approx([math.exp(0.5)] * 3)
    assert "| worse | 100.00 (100.00-100.00) | 90.0 (90.0-90.0) | 12.182 | 1.6487" in table({"worse": found})


def test_rounding_keeps_each_groups_largest_value_and_its_scale() -> None:
    x = torch.tensor([[1.0, -127.0, 0.4, 0.5, 0.3, 0.002]])
    by_pairs = rounded(x, 2)
    assert by_pairs[0, :2].tolist() == [1.0, -127.0]
    assert by_pairs[0, 3] == 0.5
    assert rounded(x, 6)[0].tolist() == [1.0, -127.0, 0.0, 0.0, 0.0, 0.0]
    assert torch.equal(rounded(x, 4)[:, 4:], rounded(x[:, 4:], 4)), "the last group is shorter"
    assert torch.equal(rounded(torch.zeros(2, 5), 4), torch.zeros(2, 5))


def test_rounded_inputs_change_what_they_are_told_to(tiny: Path) -> None:
    reference = Float32(tiny)
    ids = list(range(3, 40))
    expected = logits_of(reference.model, ids)
    found = {only: Rounded(reference, 32, only)(ids) for only in ("", "head", "layers")}
    assert torch.equal(reference(ids), expected), "afterwards the reference is itself"
    head = reference.model.ends.head
    assert head is not None
    x = torch.linalg.lstsq(head, expected.T).solution.T  # the head's input, from its output
    torch.testing.assert_close(found["head"], F.linear(rounded(x, 32), head), rtol=0.02, atol=0.02)
    spread = {only: float((one - expected).std()) for only, one in found.items()}
    assert 0 < spread["head"] < spread["layers"] <= 1.2 * spread[""]


def test_texts_are_cut_into_chunks_in_an_order_of_their_own(tmp_path: Path, tiny: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"text {i} " * 20}) + "\n" for i in range(60)))
    tokenizer = load_tokenizer(tiny)
    chunks = chunks_of(file, tokenizer, 2, 3, seed=0)
    assert [len(chunk) for chunk in chunks] == [CHUNK] * 3
    assert any(2 in chunk for chunk in chunks)
    assert chunks == chunks_of(file, tokenizer, 2, 3, seed=0) != chunks_of(file, tokenizer, 2, 3, seed=1)
    with pytest.raises(SystemExit, match="tokens; 1000 chunks take"):
        chunks_of(file, tokenizer, 2, 1000, seed=0)


def test_unknown_engines_and_peers_without_a_python_are_refused(tiny: Path) -> None:
    reference = Float32(tiny)
    with pytest.raises(ConfigError, match="allowed: native int8"):
        open_engine("gpu", tiny, reference, {}, max_tokens=CHUNK, threads=1)
    with pytest.raises(ConfigError, match="--python openvino=PATH"):
        open_engine("openvino", tiny, reference, {}, max_tokens=CHUNK, threads=1)
