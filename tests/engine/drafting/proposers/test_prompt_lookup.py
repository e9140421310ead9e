from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from tests.engine.drafting.sequences import FakeSequence


def _reference(tokens: list[int], limit: int) -> tuple[tuple[int, ...], int] | None:
    for size in (5, 4, 3, 2):
        for start in range(len(tokens) - 1, size - 1, -1):
            if tokens[start - size : start] == tokens[-size:]:
                grown = list(tokens)
                while len(grown) < start + limit:
                    grown.append(grown[len(grown) - (len(tokens) - start)])
                return tuple(grown[start : start + limit]), size
    return None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=50), st.lists(st.integers(1, 5), max_size=6), st.integers(1, 8))
def test_equals_a_search_from_the_end(tokens: list[int], steps: list[int], limit: int) -> None:
    proposer, sequence = PromptLookupProposer(), FakeSequence([])
    for step in [*steps, len(tokens)]:
        sequence.tokens += tokens[len(sequence.tokens) : len(sequence.tokens) + step]
        draft = proposer.propose([sequence], [limit])[0]
        expected = _reference(sequence.tokens, limit)
        assert (None if draft is None else (draft.tokens, draft.bucket)) == expected


def test_sequences_are_apart_and_forgotten() -> None:
    proposer = PromptLookupProposer()
    one, two = FakeSequence([1, 2, 3, 1, 2], key="one"), FakeSequence([4, 5, 1, 2], key="two")
    drafts = proposer.propose([one, two], [4, 4])
    assert drafts[0] is not None
    assert drafts[1] is None
    proposer.forget(one)
    proposer.forget(one)
    assert set(proposer._indexes._indexes) == {"two"}
