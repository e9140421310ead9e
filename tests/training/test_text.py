"""Text without hidden states: it comes back from shards as it went in, and reading it records what a pass computes."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.engine.drafting.proposers.head import PROMPT_TOKENS
from prolepsis.engine.models.heads.format import offsets
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.training.data import HELD_OUT_EVERY, Dataset, shards_of
from prolepsis.training.evaluation import BASE_DOCUMENTS
from prolepsis.training.job import BASE
from prolepsis.training.settings import LearningRecipe
from prolepsis.training.synthesis import DataRequest
from prolepsis.training.target import choose_vocabulary, count_tokens, coverage
from prolepsis.training.text import WrittenText, read_texts, record, recorded, write_texts
from tests.paths import ROOT
from tests.training.targets import config_of, save_target

AUX_LAYERS = (2, 2, 1, 4)
VOCAB, END = 259, 2


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return config_of(save_target(tmp_path_factory.mktemp("target")))


def _ids(length: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def _file(path: Path, *lines: Mapping[str, object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _text(number: int, prompt: int, answer: int) -> WrittenText:
    return WrittenText(number, "code", number % 2 == 0, _ids(prompt, number), _ids(answer, 1000 + number))


LENGTHS = ((5, 30), (200, 7), (3, 100), (1, 1), (40, 40))


def test_reading_records_what_a_pass_over_each_text_computes(config: EngineConfig) -> None:
    model = load_model(config).model
    assert isinstance(model, LeanModel)
    texts = [_text(number, *lengths) for number, lengths in enumerate(LENGTHS)]
    documents = list(recorded(model, AUX_LAYERS, texts, most=64))
    assert [(d.number, d.kind, d.greedy) for d in documents] == [(t.number, "code", t.greedy) for t in texts]
    for document, text in zip(documents, texts, strict=True):
        assert (document.tokens.tolist(), document.response_start) == (text.tokens, len(text.prompt))
        batch = pack([SequenceInput(text.tokens, 0, list(range(16)), keep_last=1)])
        _, features = model.forward_features(batch, model.make_cache(16), AUX_LAYERS)
        torch.testing.assert_close(document.features, features, rtol=0.1, atol=0.05)  # bf16, other chunks


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_text_survives_the_way_through_shards(config: EngineConfig, tmp_path: Path, suffix: str) -> None:
    lines = [
        {"prompt": _ids(p, i), "answer": [*_ids(a, 9 + i), END], "kind": f"k{i}"} for i, (p, a) in enumerate(LENGTHS)
    ]
    texts = read_texts(_file(tmp_path / "in", *lines), VOCAB, (END,))
    request = DataRequest(tmp_path / "data", 10_000, AUX_LAYERS)
    totals: list[int] = []
    record(config, request, tmp_path / "in", totals.append)
    assert totals[-1] == sum(min(p, PROMPT_TOKENS) + a for p, a in LENGTHS)
    out = tmp_path / f"out{suffix}"
    assert write_texts(out, tmp_path / "data") == len(LENGTHS)
    assert read_texts(out, VOCAB, (END,)) == texts
    record(config, request, out, totals.append)
    assert sum(len(shard) for shard in shards_of(tmp_path / "data")) == len(LENGTHS), "nothing is recorded twice"


def test_reading_ends_with_the_amount_that_is_wanted(config: EngineConfig, tmp_path: Path) -> None:
    lines = [{"prompt": _ids(5, i), "answer": _ids(15, 9 + i)} for i in range(4)]
    file, request = _file(tmp_path / "in", *lines), DataRequest(tmp_path / "data", 40, AUX_LAYERS)
    totals: list[int] = []
    record(config, request, file, totals.append)
    assert totals == [0, 20, 40]
    record(config, request, file, totals.append)
    assert totals == [0, 20, 40, 40]


def test_texts_of_joined_files_keep_their_side_where_numbers_are_the_same(config: EngineConfig, tmp_path: Path) -> None:
    numbers = (40, 40, 7, 7)
    lines = [{"prompt": _ids(5, i), "answer": _ids(15, 9 + i), "number": number} for i, number in enumerate(numbers)]
    file = _file(tmp_path / "in", *lines, lines[0])
    for _ in range(2):
        record(config, DataRequest(tmp_path / "data", 1000, AUX_LAYERS), file, lambda _: None)
    found = [number for shard in shards_of(tmp_path / "data") for number in shard.numbers]
    assert len(set(found)) == len(found) == len(lines)
    assert sorted(number % HELD_OUT_EVERY for number in found) == [0, 0, 7, 7]


def test_a_text_that_is_longer_than_the_model_reads_is_refused(config: EngineConfig, tmp_path: Path) -> None:
    positions = load_model(config).model.info.max_positions
    file = _file(tmp_path / "in", {"prompt": _ids(5, 1), "answer": _ids(positions - 4, 2)})
    with pytest.raises(ConfigError, match=f"has a text of {positions + 1} tokens; allowed for .*: {positions}"):
        record(config, DataRequest(tmp_path / "data", 10**6, AUX_LAYERS), file, lambda _: None)


def test_a_long_prompt_keeps_the_hidden_states_of_its_end(config: EngineConfig, tmp_path: Path) -> None:
    prompt, answer = _ids(PROMPT_TOKENS + 50, 1), _ids(20, 2)
    line = {"prompt": prompt, "answer": answer, "number": 7}
    record(config, DataRequest(tmp_path / "data", 10_000, AUX_LAYERS), _file(tmp_path / "in", line), lambda _: None)
    [document] = [shard.read(0) for shard in shards_of(tmp_path / "data")]
    assert (len(document.features), document.response_start, document.num_anchors) == (148, PROMPT_TOKENS, 21)
    assert [*document.earlier.tolist(), *document.tokens.tolist()] == prompt + answer
    assert Dataset(tmp_path / "data").num_response_tokens == 20


def test_answers_to_one_prompt_are_held_out_together(tmp_path: Path) -> None:
    prompts = [_ids(6, seed) for seed in range(120)]
    lines = [{"prompt": p, "answer": _ids(4, seed), "greedy": seed > 0} for p in prompts for seed in (0, 1)]
    texts = read_texts(_file(tmp_path / "in", *lines), VOCAB, ())
    assert len({text.number for text in texts}) == len(texts)
    sides = [text.number % HELD_OUT_EVERY == 0 for text in texts]
    assert sides[::2] == sides[1::2]
    assert 0 < sum(sides) < len(sides)
    assert [text.greedy for text in texts[:2]] == [False, True]


@pytest.mark.parametrize("head", sorted((ROOT / "heads").glob("*/prolepsis_heads/*")), ids=lambda folder: folder.name)
def test_a_shipped_head_comes_with_a_base_text(head: Path) -> None:
    vocab = json.loads((head / "config.json").read_text())["transformer_layer_config"]["vocab_size"]
    texts = read_texts(head / BASE, vocab, ())
    assert len({text.number for text in texts}) == len(texts) >= 4 * BASE_DOCUMENTS
    assert sum(len(text.tokens) for text in texts) >= LearningRecipe().base_tokens


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"prompt": [3]}', "'answer'"),
        ('{"prompt": [3], "answer": []}', "an empty text"),
        ('{"prompt": "Hello", "answer": [4]}', "no list"),
        ('{"prompt": [3], "answer": [259]}', "259 is no token of the target, which has 259"),
        ('{"prompt": [3], "answer": [true]}', "True is no token"),
        ("[3, 4]", "JSON object"),
        ("{", "JSON object"),
    ],
)
def test_the_first_invalid_line_is_named(tmp_path: Path, line: str, fault: str) -> None:
    (tmp_path / "in").write_text(f'{{"prompt": [3], "answer": [4]}}\n{line}\n')
    with pytest.raises(ConfigError, match=f"line 2: .*{fault}"):
        read_texts(tmp_path / "in", VOCAB, ())


def test_a_file_that_is_not_compressed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_texts(_file(tmp_path / "in.gz", {}), VOCAB, ())


def test_the_most_frequent_and_the_needed_are_chosen() -> None:
    counts = count_tokens([torch.tensor([5, 5, 5, 9, 9, 2]), torch.tensor([9, 7])], 12)
    assert choose_vocabulary(counts, 4, [11]).tolist() == [2, 5, 9, 11]
    assert choose_vocabulary(counts, 4, [7, 8, 10, 11]).tolist() == [2, 5, 7, 9], "at most a quarter of it"
    assert choose_vocabulary(counts, 100, []).tolist() == list(range(12))


def test_coverage_is_the_share_of_counted_tokens() -> None:
    counts = count_tokens([torch.tensor([1, 1, 1, 2, 2, 3, 3, 4])], 6)
    assert coverage(counts, [1, 2, 6], []) == {1: 3 / 8, 2: 5 / 8, 6: 1.0}
    assert coverage(counts, [4], [5]) == {4: 7 / 8}


def test_offsets_lead_from_draft_to_target_ids() -> None:
    ids = torch.tensor([2, 5, 9, 11])
    d2t, t2d = offsets(ids, 12)
    assert (torch.arange(4) + d2t).tolist() == ids.tolist()
    assert t2d.nonzero().flatten().tolist() == ids.tolist()
