from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.drafting.proposers.suffix_index import MAX_MATCH, SequenceIndex, SharedIndex

words = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def _common_suffix(left: list[int], right: list[int]) -> int:
    length = 0
    while length < min(len(left), len(right), MAX_MATCH) and left[-1 - length] == right[-1 - length]:
        length += 1
    return length


def _occurrences(text: list[int], context: list[int]) -> dict[int, int]:
    """Brute force: every place in `text` behind at least one token of the context's end, with the match length."""
    places = {place: _common_suffix(text[:place], context) for place in range(1, len(text))}
    return {place: match for place, match in places.items() if match}


@given(words, st.lists(st.integers(1, 7), max_size=8))
def test_local_finds_true_occurrences_and_the_longest(text: list[int], steps: list[int]) -> None:
    index, known = SequenceIndex(), 0
    for step in [*steps, len(text)]:  # fed in pieces, as steps commit them
        index.extend(text[known : known + step])
        known = min(len(text), known + step)
    truth = _occurrences(text, text)
    found = index.find(5)
    for continuation in found:
        places = [p for p, match in truth.items() if match == continuation.match]
        assert continuation.tokens in [_looped(text, place, 5) for place in places]
    assert bool(found) == bool(truth)
    if truth and len(text) <= 8:  # few enough places for the quotas
        assert max(c.match for c in found) == max(truth.values())


def _looped(text: list[int], place: int, length: int) -> list[int]:
    grown = list(text)
    while len(grown) < place + length:
        grown.append(grown[len(grown) - (len(text) - place)])
    return grown[place : place + length]


def test_local_prefers_longer_matches_and_more_recent_places() -> None:
    text = [1, 2, 3, 4, 50, 9, 1, 2, 3, 4, 60, 8, 4, 70, 1, 2, 3, 4]
    index = SequenceIndex()
    index.extend(text)
    found = index.find(2)
    assert [(c.match, c.tokens) for c in found][:3] == [(4, [60, 8]), (4, [50, 9]), (1, [70, 1])]


def test_local_follows_a_loop_beyond_its_end() -> None:
    text = [5, 6, 7] * 3
    index = SequenceIndex()
    index.extend(text)
    assert index.find(8)[0].tokens == [5, 6, 7, 5, 6, 7, 5, 6]


@given(st.lists(words, min_size=1, max_size=6), words)
def test_shared_finds_true_occurrences_and_the_longest(outputs: list[list[int]], context: list[int]) -> None:
    index = SharedIndex(1 << 16)
    for output in outputs:
        index.add(0, output)
    found = index.find(0, context, 5)
    truth = [(m, o[p : p + 5]) for o in outputs for p, m in _occurrences(o, context).items()]
    for continuation in found:
        assert (continuation.match, continuation.tokens) in truth
    assert bool(found) == bool(truth)


@given(st.lists(st.tuples(st.sampled_from("ab"), words), max_size=12), words)
def test_scopes_stay_apart(outputs: list[tuple[str, list[int]]], context: list[int]) -> None:
    """Every output of scope b ends with a token that a never has, so a continuation shows where it is from."""
    index = SharedIndex(64 * 60)  # a tiny ring: collisions and overwriting all the time
    for scope, output in outputs:
        index.add(ord(scope), output if scope == "a" else [*output[:-1], 100])
    assert not any(100 in c.tokens for c in index.find(ord("a"), context, 5))
    assert index.find(ord("c"), context, 5) == []


def test_scopes_are_kept_apart_where_ngrams_collide() -> None:
    """A hundred scopes hold the same n-grams in 600 slots: chance alone puts some into the same slot."""
    index = SharedIndex(600 * 60)
    for scope in range(100):
        index.add(scope, [1, 2, 3, 4, 5 + scope])
    for scope in range(100):
        assert {c.tokens[0] for c in index.find(scope, [1, 2, 3, 4], 1)} == {5 + scope}


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=200), max_size=8), words)
def test_memory_is_bounded_and_what_is_found_is_still_there(outputs: list[list[int]], context: list[int]) -> None:
    index = SharedIndex(100 * 60)
    size = index.num_bytes
    written: list[int] = []
    for output in outputs:
        index.add(0, output)
        written += [-1, *output[-98:]]
    assert index.num_bytes == size <= 100 * 60
    assert index.num_tokens <= index.capacity == 100
    alive = written[-100:]
    for continuation in index.find(0, context, 5):
        sequence = [*context[len(context) - continuation.match :], *continuation.tokens]
        assert any(alive[i : i + len(sequence)] == sequence for i in range(len(alive)))


def test_the_oldest_outputs_are_evicted_first() -> None:
    index = SharedIndex(100 * 60)
    for first in range(10, 30):
        index.add(0, [first, 1, 2, 3, 4, 5, 6, first + 50])
    assert index.find(0, [10, 1], 4) == [] or all(c.match == 1 for c in index.find(0, [10, 1], 4))
    newest = index.find(0, [29, 1, 2, 3], 4)[0]
    assert (newest.match, newest.tokens) == (4, [4, 5, 6, 79])
