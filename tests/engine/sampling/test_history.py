import torch
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.sampling.processors import TokenHistory

TOKENS = st.lists(st.integers(0, 9), max_size=30)


def as_dict(history: TokenHistory, prefix: tuple[int, ...] = ()) -> dict[int, float]:
    ids, counts = history.counts(prefix)
    assert ids.dtype == torch.int64
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


@given(TOKENS, st.lists(TOKENS, max_size=5), TOKENS)
def test_counts_equal_counting_by_hand(prompt: list[int], blocks: list[list[int]], prefix: list[int]) -> None:
    history = TokenHistory(prompt)
    output: list[int] = []
    for block in blocks:
        history.append(block)
        output += block
    said = output + prefix
    assert as_dict(history, tuple(prefix)) == {token: said.count(token) for token in {*prompt, *said}}


def test_growth_beyond_the_first_buffer() -> None:
    history = TokenHistory([])
    for token in range(1000):
        history.append([token, token])
    assert as_dict(history) == dict.fromkeys(range(1000), 2)


def test_counting_a_prefix_records_nothing() -> None:
    history = TokenHistory([1, 2])
    history.append([2, 3])
    before = as_dict(history)
    ids, counts = history.counts((3, 4, 4))
    counts.fill_(99)
    ids.fill_(99)
    assert as_dict(history) == before


def test_an_earlier_answer_does_not_change_when_tokens_are_appended() -> None:
    history = TokenHistory([1])
    _, counts = history.counts()
    history.append([1])
    assert counts.tolist() == [0]
