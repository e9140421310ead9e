import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import ROOT, Draft, chain
from prolepsis.engine.drafting.verify import SequenceStep, VerifyResult, verify, verify_batch
from prolepsis.engine.sampling.noise import native_kernel
from prolepsis.engine.sampling.processors import TokenHistory
from prolepsis.engine.sampling.sampler import Sampler
from tests.engine.models.kernels import team

V = 6
GREEDY = SamplingParams(temperature=0.0)
TREE = Draft(tokens=(1, 2, 3, 4, 5), parents=(ROOT, 0, 1, 0, 3), proposer="test")


def target(picks: dict[int, int]) -> tuple[list[int], VerifyResult]:
    """Verify TREE against a target that says `picks[node]`; also return the nodes asked for."""
    visited: list[int] = []

    def pick(node: int) -> int:
        visited.append(node)
        return picks[node]

    return visited, verify(TREE, pick)


def logits_saying(tokens: list[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), V).float()


def test_no_draft_emits_one_token() -> None:
    assert verify(None, lambda node: 3) == VerifyResult((3,), ())
    assert verify(chain((), "test"), lambda node: 3) == VerifyResult((3,), ())


def test_a_wrong_first_token_is_recovered() -> None:
    visited, result = target({ROOT: 5})
    assert result == VerifyResult((5,), ())
    assert visited == [ROOT]


def test_the_principal_chain_is_followed_to_the_bonus_token() -> None:
    visited, result = target({ROOT: 1, 0: 2, 1: 3, 2: 0})
    assert result == VerifyResult((1, 2, 3, 0), (0, 1, 2))
    assert visited == [ROOT, 0, 1, 2]
    assert result.rows == (0, 1, 2, 3)
    assert len(result.path) == 3
    assert not result.last_was_drafted


def test_a_side_branch_is_followed() -> None:
    visited, result = target({ROOT: 1, 0: 4, 3: 5, 4: 5})
    assert result == VerifyResult((1, 4, 5, 5), (0, 3, 4))
    assert visited == [ROOT, 0, 3, 4]


def test_a_token_of_another_branch_is_not_a_child() -> None:
    _, result = target({ROOT: 1, 0: 2, 1: 5})
    assert result == VerifyResult((1, 2, 5), (0, 1))


def test_a_drafted_end_token_ends_the_walk_inclusive() -> None:
    result = verify(chain((1, 2, 3), "test"), lambda node: node + 2, ends=frozenset({2}))
    assert result == VerifyResult((1, 2), (0,), end_token=2, last_was_drafted=True)
    assert (len(result.path), result.last_was_drafted) == (1, True)


def test_an_end_token_that_was_not_drafted() -> None:
    result = verify(chain((1, 2), "test"), lambda node: [1, 0][node + 1], ends=frozenset({0}))
    assert result == VerifyResult((1, 0), (0,), end_token=0)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_the_limit_cuts_inside_the_block(limit: int) -> None:
    result = verify(chain((1, 2, 3), "test"), lambda node: node + 2, limit=limit)
    assert result.tokens == (1, 2, 3, 4)[:limit]
    assert result.path == (0, 1, 2)[: limit - 1]
    assert result.last_was_drafted == (limit < 4)


def test_a_sequence_without_room_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match="no room"):
        verify(None, lambda node: 0, limit=0)


def test_batch_of_greedy_and_sampled_chains_and_trees() -> None:
    said = [1, 2, 3, 0, 0, 0, 4, 4, 1, 1]
    sure = SamplingParams(temperature=0.01)
    steps = [
        SequenceStep(TREE, GREEDY, key=1, position=0, first_row=0),
        SequenceStep(None, sure, key=2, position=4, first_row=6),
        SequenceStep(chain((4, 2), "test"), sure, key=3, position=4, first_row=7),
    ]
    results = verify_batch(steps, logits_saying(said), Sampler(V, ()))
    assert results == [
        VerifyResult((1, 2, 3, 0), (0, 1, 2), first_row=0),
        VerifyResult((4,), (), first_row=6),
        VerifyResult((4, 1), (0,), first_row=7),
    ]
    assert [result.rows for result in results] == [(0, 1, 2, 3), (6,), (7, 8)]


def test_rows_need_not_follow_the_order_of_samples() -> None:
    steps = [
        SequenceStep(None, GREEDY, key=1, position=0, first_row=2),
        SequenceStep(chain((3,), "test"), GREEDY, key=1, position=0, first_row=0),
    ]
    results = verify_batch(steps, logits_saying([3, 1, 5]), Sampler(V, ()))
    assert [result.tokens for result in results] == [(5,), (3, 1)]


def test_limits_of_a_step_are_max_tokens_and_room() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=10)
    assert SequenceStep(None, params, 0, position=7, first_row=0).limit == 3
    assert SequenceStep(None, params, 0, position=7, first_row=0, room=2).limit == 2
    assert SequenceStep(None, params, 0, position=7, first_row=0, room=9).limit == 3


def test_an_empty_step() -> None:
    assert verify_batch([], torch.zeros(0, V), Sampler(V, ())) == []


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    nodes: list[tuple[int, int]] = []
    for i in range(draw(st.integers(0, 8))):
        node = (draw(st.integers(0, V - 1)), draw(st.integers(ROOT, i - 1)))
        if node not in nodes:
            nodes.append(node)
        else:
            break
    return Draft(tuple(token for token, _ in nodes), tuple(parent for _, parent in nodes), "test")


@given(st.lists(drafts(), min_size=1, max_size=4), st.integers(0, 10**6), st.sampled_from([0.0, 0.5]), st.booleans())
def test_a_batch_equals_each_sequence_alone(
    batch: list[Draft],
    seed: int,
    presence: float,
    native: bool,
) -> None:
    logits = torch.randn(
        sum(1 + len(draft.tokens) for draft in batch), V, generator=torch.Generator().manual_seed(seed)
    )
    sampler = Sampler(V, (0,), native=native)
    steps: list[SequenceStep] = []
    row = 0
    for i, draft in enumerate(batch):
        params = SamplingParams(temperature=0.7 * (i % 2), presence_penalty=presence, max_tokens=6)
        steps.append(SequenceStep(draft, params, seed + i, i, row, TokenHistory([1])))
        row += 1 + len(draft.tokens)
    results = verify_batch(steps, logits, sampler)
    assert results == [verify_batch([step], logits, sampler)[0] for step in steps]
    for draft, step, result in zip(batch, steps, results, strict=True):
        assert len(result.path) == len(result.tokens) - 1
        assert [draft.tokens[node] for node in result.path] == list(result.tokens[:-1])
        assert [draft.parents[node] for node in result.path] == [ROOT, *result.path][: len(result.path)]
        assert len(result.tokens) <= step.limit
        assert 0 not in result.tokens[:-1]


@given(
    st.lists(drafts(), min_size=1, max_size=5),
    st.integers(0, 10**6),
    st.sampled_from([0.3, 1.0]),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_the_kernel_walks_as_torch_does(
    batch: list[Draft], seed: int, temperature: float, room: int, threads: int
) -> None:
    """Tokens, nodes, ends and limits of sampled drafts; a likely token ends a sequence, drafted or not."""
    if native_kernel() is None:
        pytest.skip("no compiled sampling kernel on this machine")
    rows = sum(1 + len(draft.tokens) for draft in batch)
    logits = 2.0 * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed))
    steps: list[SequenceStep] = []
    row = 0
    for i, draft in enumerate(batch):
        params = SamplingParams(temperature=temperature, top_p=0.9, max_tokens=6, stop_token_ids=(i % V,))
        steps.append(SequenceStep(draft if draft.tokens else None, params, seed + i, i, row, room=room))
        row += 1 + len(draft.tokens)
    native = verify_batch(steps, logits, Sampler(V, (0,), team=team(threads)))
    assert native == verify_batch(steps, logits, Sampler(V, (0,), native=False))
