"""The draft vocabulary: the most frequent tokens, those it must have, offsets that lead back."""

import torch

from prolepsis.engine.models.heads.format import offsets
from prolepsis.training.target import choose_vocabulary, count_tokens, coverage


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
