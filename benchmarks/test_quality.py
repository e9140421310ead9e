"""Figures of quality on small cases with known answers."""

import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks.quality import CHUNK, ChunkFigures, chunks_of, compare, summarise, table
from benchmarks.quality_engines import open_engine
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
    with pytest.raises(ConfigError, match="allowed: native int8"):
        open_engine("gpu", tiny, {}, max_tokens=CHUNK, threads=1)
    with pytest.raises(ConfigError, match="--python openvino=PATH"):
        open_engine("openvino", tiny, {}, max_tokens=CHUNK, threads=1)
