"""Documents survive the way to disk and back; a folder holds data of one origin only."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prolepsis.core.errors import ConfigError
from prolepsis.training.data import (
    HELD_OUT_EVERY,
    DataManifest,
    Dataset,
    Shard,
    ShardWriter,
    groups,
    read,
    read_manifest,
    shards_of,
)
from tests.training.documents import HIDDEN, VOCAB, random_document

MANIFEST = DataManifest("tiny", "identity", (1, 2, 1, 4), HIDDEN, VOCAB)


def _write(folder: Path, numbers: range, tokens_per_shard: int = 50) -> None:
    writer = ShardWriter(folder, MANIFEST, tokens_per_shard=tokens_per_shard)
    for number in numbers:
        writer.add(random_document(12 + number % 5, 4, number=number))
    writer.flush()


def few_documents(folder: Path) -> Dataset:
    """Write eleven short documents for a training, and open them."""
    writer = ShardWriter(folder, MANIFEST, tokens_per_shard=200)
    for number in range(1, 12):
        writer.add(random_document(14, 4, number=number))
    writer.flush()
    return Dataset(folder)


def test_documents_come_back_as_they_were(tmp_path: Path) -> None:
    _write(tmp_path, range(9))
    shards = shards_of(tmp_path)
    assert len(shards) > 1
    found = [shard.read(index) for shard in shards for index in range(len(shard))]
    for number, document in enumerate(found):
        expected = random_document(12 + number % 5, 4, number=number)
        assert (document.number, document.kind, document.response_start) == (number, "chat", 4)
        assert torch.equal(document.tokens, expected.tokens)
        assert torch.equal(document.features, expected.features)
    assert torch.equal(shards[0].response(0), found[0].tokens[4:])
    assert read_manifest(tmp_path) == MANIFEST


def test_a_second_writer_goes_on_behind_the_first(tmp_path: Path) -> None:
    _write(tmp_path, range(5))
    before = {shard.file: shard.file.read_bytes() for shard in shards_of(tmp_path)}
    _write(tmp_path, range(5, 9))
    assert all(file.read_bytes() == content for file, content in before.items())
    assert [number for shard in shards_of(tmp_path) for number in shard.numbers] == list(range(9))


def test_data_of_another_target_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, range(3))
    with pytest.raises(ConfigError, match="fingerprint is identity, not other"):
        ShardWriter(tmp_path, replace(MANIFEST, fingerprint="other"))


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    _write(tmp_path, range(3))
    file = shards_of(tmp_path)[0].file
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ConfigError, match=file.name):
        Shard(file)


def test_held_out_documents_are_never_trained_on(tmp_path: Path) -> None:
    _write(tmp_path, range(2 * HELD_OUT_EVERY + 1))
    dataset = Dataset(tmp_path)
    assert [document.number for document in read(dataset.held_out)] == [0, HELD_OUT_EVERY, 2 * HELD_OUT_EVERY]
    epoch = dataset.epoch(seed=1, epoch=0)
    assert epoch != dataset.epoch(seed=1, epoch=1)
    assert sorted(d.number for d in read(epoch)) == sorted(d.number for d in read(dataset.training))
    assert not {d.number for d in read(epoch)} & {d.number for d in read(dataset.held_out)}


def test_a_small_run_sees_the_first_documents_only(tmp_path: Path) -> None:
    _write(tmp_path, range(30))
    small, whole = Dataset(tmp_path, max_tokens=100), Dataset(tmp_path)
    known = [document.number for document in read(whole.training)]
    assert [document.number for document in read(small.training)] == known[: len(small.training)]
    assert 100 <= small.num_tokens < 100 + 16
    assert len(small.held_out) == len(whole.held_out)


def test_groups_hold_about_as_many_anchors_as_asked(tmp_path: Path) -> None:
    _write(tmp_path, range(30))
    dataset = Dataset(tmp_path)
    for group in groups(dataset.training, 40):
        assert 40 <= sum(ref.num_anchors() for ref in group) < 40 + 14
    assert sum(ref.num_anchors(1) for ref in dataset.training) > sum(ref.num_anchors() for ref in dataset.training)
    assert {d.response_start for d in read(dataset.training, 1)} == {1}
