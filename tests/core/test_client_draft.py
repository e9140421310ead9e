import pytest

from prolepsis.core.client_draft import MAX_CLIENT_DRAFT_TOKENS, ClientDraft
from prolepsis.core.errors import InvalidParameter

DRAFT = ClientDraft(2, (12, 13, 14))
PROMPT = [7, 8, 9]


@pytest.mark.parametrize(
    ("output", "left"),
    [
        ([], ()),  # the output has not come to it
        ([10, 11], (12, 13, 14)),
        ([99, 98], (12, 13, 14)),  # what stands before it does not matter
        ([10, 11, 12], (13, 14)),
        ([10, 11, 12, 13, 14], ()),
        ([10, 11, 12, 13, 14, 15], ()),
        ([10, 11, 99], ()),
        ([10, 11, 12, 99], ()),
    ],
)
def test_the_rest_of_a_draft_after_some_output(output: list[int], left: tuple[int, ...]) -> None:
    assert DRAFT.next_tokens([*PROMPT, *output], len(PROMPT)) == left


@pytest.mark.parametrize("token_ids", [(), (0,) * (MAX_CLIENT_DRAFT_TOKENS + 1), (-1,), (3, 100)])
def test_a_draft_that_cannot_be_part_of_an_answer_is_refused(token_ids: tuple[int, ...]) -> None:
    with pytest.raises(InvalidParameter, match=r"token_ids .*; allowed: "):
        ClientDraft(0, token_ids).validate(100)


def test_a_sound_draft_is_valid() -> None:
    ClientDraft(10**9, (0, 99) * (MAX_CLIENT_DRAFT_TOKENS // 2)).validate(100)
