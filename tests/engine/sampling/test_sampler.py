"""The sampler picks as the reference does, truncated or not, in the kernel or in torch."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.sampling import sampler as truncation
from prolepsis.engine.sampling.noise import native_kernel, noise_key
from prolepsis.engine.sampling.processors import LogitBias, TokenHistory
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow
from tests.engine.models.kernels import team
from tests.engine.sampling import brute_force

BACKENDS = [pytest.param(True, id="native"), pytest.param(False, id="torch")]


def sampler(vocab_size: int, native: bool) -> Sampler:
    if native and native_kernel() is None:
        pytest.skip("no compiled sampling kernel on this machine")
    return Sampler(vocab_size, (0,), native=native)


def random_logits(rows: int, vocab_size: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-9, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([0.0, 0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.8, 1.4]),
    presence_penalty=st.sampled_from([0.0, 0.9, -1.1]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.7]),
    logit_bias=st.sampled_from([(), ((1, 3.0),), ((0, -100.0), (2, 1.0))]),
    min_tokens=st.sampled_from([0, 3]),
    allowed_token_ids=st.sampled_from([(), (), (0, 2), (1,)]),
)


@pytest.mark.parametrize("native", BACKENDS)
@given(
    params=PARAMS,
    vocab_size=st.sampled_from([3, 5, 64, 65, 200]),
    seed=st.integers(0, 99),
    position=st.integers(0, 5),
    allowed=st.none() | st.frozensets(st.integers(0, 2), min_size=1),
)
def test_probabilities_equal_brute_force(
    native: bool,
    params: SamplingParams,
    vocab_size: int,
    *,
    seed: int,
    position: int,
    allowed: frozenset[int] | None,
) -> None:
    logits = random_logits(1, vocab_size, seed)
    prompt, output = [1, 2], [2, 1, 1, 2, 0][:position]
    history = TokenHistory(prompt)
    history.append(output[:2])
    row = SamplingRow(
        params, 1, position, history, tuple(output[2:]), mask_of(allowed, vocab_size), LogitBias.of(params)
    )
    got = sampler(vocab_size, native).probabilities(logits, [row])[0].tolist()
    want = brute_force.distribution(logits[0].tolist(), params, prompt, output, frozenset({0}), allowed=allowed)
    assert max(abs(a - b) for a, b in zip(got, want, strict=True)) < 1e-12


def mask_of(allowed: frozenset[int] | None, vocab_size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    return None if allowed is None else np.isin(np.arange(vocab_size), list(allowed))


@given(
    params=PARAMS,
    vocab_size=st.sampled_from([2, 5, 63, 64, 1000, 5000]),
    seed=st.integers(0, 2**32),
    share=st.sampled_from([None, 0.01, 0.5, 0.99]),
)
def test_compiled_picks_equal_those_of_torch(
    params: SamplingParams, vocab_size: int, seed: int, share: float | None
) -> None:
    logits = random_logits(4, vocab_size, seed, spread=1.5)
    params = params if vocab_size > 2 else SamplingParams()
    allowed = None
    if share is not None:
        allowed = np.random.default_rng(seed).random(vocab_size) < share
        allowed[seed % vocab_size] = True
    rows = [
        SamplingRow(params, noise_key(seed, i), i, TokenHistory([1, 1]), (), allowed, LogitBias.of(params))
        for i in range(4)
    ]
    picked = sampler(vocab_size, native=True).pick(logits, rows)
    assert picked == sampler(vocab_size, native=False).pick(logits, rows)
    assert allowed is None or params.allowed_token_ids or all(allowed[token] for token in picked)
    fast = sampler(vocab_size, native=True)
    assert picked == [int(fast.scores(logits[i], row).argmax()) for i, row in enumerate(rows)]


@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0])
def test_compiled_picks_equal_those_of_torch_at_full_size(spread: float) -> None:
    logits = random_logits(1, 49_152, 1, spread)
    grids = [
        SamplingParams(),
        SamplingParams(top_p=0.95),
        SamplingParams(top_k=2000, top_p=0.9),
        SamplingParams(min_p=0.1),
    ]
    for params in grids:
        rows = [SamplingRow(params, noise_key(2, 0), 9)]
        fast, slow = sampler(49_152, native=True), sampler(49_152, native=False)
        assert fast.pick(logits, rows) == slow.pick(logits, rows)
        assert torch.allclose(fast.probabilities(logits, rows), slow.probabilities(logits, rows), rtol=0, atol=1e-12)


@pytest.mark.parametrize("native", BACKENDS)
def test_pick_is_the_first_maximum_of_scores(native: bool) -> None:
    subject = sampler(500, native)
    logits = random_logits(1, 500)
    for seed in range(50):
        for params in (
            SamplingParams(),
            SamplingParams(temperature=0.7, top_p=0.8),
            SamplingParams(top_k=4, min_tokens=2),
        ):
            row = SamplingRow(params, noise_key(seed, 0), 0)
            assert subject.pick(logits, [row]) == [int(subject.scores(logits[0], row).argmax())]


@pytest.mark.parametrize("native", BACKENDS)
def test_greedy_breaks_ties_by_the_lowest_id(native: bool) -> None:
    logits = torch.full((1, 200), -1.0)
    logits[0, [7, 63, 64, 199]] = 2.0
    subject = sampler(200, native)
    greedy = SamplingParams(temperature=0.0)
    assert subject.argmax(logits) == [7]
    assert subject.pick(logits, [SamplingRow(greedy, 0, 0)]) == [7]
    biased = SamplingParams(temperature=0.0, logit_bias=((7, -1.0),))
    assert subject.pick(logits, [SamplingRow(biased, 0, 0, bias=LogitBias.of(biased))]) == [63]


@pytest.mark.parametrize("native", BACKENDS)
def test_a_row_does_not_depend_on_its_neighbours(native: bool) -> None:
    subject = sampler(3000, native)
    logits = random_logits(6, 3000)
    grid = [
        SamplingParams(temperature=0.0),
        SamplingParams(),
        SamplingParams(top_p=0.9, temperature=0.8),
        SamplingParams(top_k=20),
        SamplingParams(temperature=0.0, repetition_penalty=1.2),
        SamplingParams(min_p=0.05, frequency_penalty=0.5),
    ]
    rows = [SamplingRow(params, noise_key(9, i), 4, TokenHistory([3, 4])) for i, params in enumerate(grid)]
    alone = [subject.pick(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert subject.pick(logits, rows) == alone
    assert subject.pick(logits, rows[::-1], at=range(5, -1, -1)) == alone[::-1]
    assert subject.pick(logits, [rows[2]] * 3, at=[2, 2, 2]) == [alone[2]] * 3


@pytest.mark.parametrize("native", BACKENDS)
def test_strided_rows_and_other_types_are_read_right(native: bool) -> None:
    subject = sampler(100, native)
    wide = random_logits(4, 160)
    rows = [SamplingRow(SamplingParams(top_p=0.9), i, 0) for i in range(4)]
    greedy = [SamplingRow(SamplingParams(temperature=0.0), i, 0) for i in range(4)]
    for view in (wide[:, :100], wide[:, 60:], random_logits(100, 4).T, wide[:, :100].to(torch.float64)):
        copy = view.to(torch.float32).contiguous()
        assert subject.pick(view, rows) == subject.pick(copy, rows)
        assert subject.pick(view, greedy) == subject.pick(copy, greedy)


@pytest.mark.parametrize("native", BACKENDS)
def test_a_token_of_probability_zero_is_never_picked(native: bool) -> None:
    subject = sampler(4, native)
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, -3.0]])
    rows = [SamplingRow(SamplingParams(), noise_key(seed, 0), 0) for seed in range(300)]
    assert set(subject.pick(logits, rows, at=[0] * 300)) == {1, 3}


def test_ending_tokens() -> None:
    subject = Sampler(10, (0, 5))
    assert subject.ends(SamplingParams()) == {0, 5}
    assert subject.ends(SamplingParams(stop_token_ids=(7,))) == {0, 5, 7}
    assert subject.ends(SamplingParams(ignore_eos=True, stop_token_ids=(7,))) == {7}


def test_logprobs_are_the_raw_log_softmax() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, -2.0])
    exact = torch.log_softmax(logits.double(), 0)
    said = Sampler(4, ()).logprobs(logits, 3, 2)
    assert said.logprob == pytest.approx(float(exact[3]), abs=1e-14)
    assert [token for token, _ in said.top] == [1, 2]
    assert said.top[0][1] == pytest.approx(float(exact[1]), abs=1e-14)
    assert Sampler(4, ()).logprobs(logits, 0, 0).top == ()
    assert [token for token, _ in Sampler(4, ()).logprobs(logits, 0, 20).top] == [1, 2, 0, 3]


@pytest.mark.parametrize("native", BACKENDS)
@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.2501, 2), (0.5, 2), (0.50001, 3), (0.75, 3), (0.9999, 4)])
def test_a_nucleus_that_ends_on_a_border_is_exact(native: bool, top_p: float, kept: int) -> None:
    """Four tokens of equal mass: a mass that is known roughly does not tell which of them are in."""
    logits = torch.full((1, 300), -200.0)
    logits[0, [7, 50, 120, 299]] = 4.0
    row = SamplingRow(SamplingParams(top_p=top_p), 5, 0)
    probabilities = sampler(300, native).probabilities(logits, [row])[0]
    assert probabilities.nonzero()[:, 0].tolist() == [7, 50, 120, 299][:kept]


@pytest.mark.parametrize("native", BACKENDS)
@pytest.mark.parametrize("temperature", [1e-43, 1e-40, 1e-300])
def test_a_nucleus_is_right_where_the_smallest_differences_count(native: bool, temperature: float) -> None:
    """At such temperatures a factor in single precision would be infinite."""
    logits = torch.arange(100.0)[None] * 1e-44
    row = SamplingRow(SamplingParams(temperature=temperature, top_p=0.9), 5, 0)
    weights = [math.exp(max(-700.0, float(logit - logits.max()) / temperature)) for logit in logits.double()[0]]
    size = next(n for n in range(1, 101) if sum(weights[-n:]) >= 0.9 * sum(weights))
    probabilities = sampler(100, native).probabilities(logits, [row])[0]
    assert probabilities.nonzero()[:, 0].tolist() == list(range(100 - size, 100))


def kept_ids(logits: list[float], params: SamplingParams) -> list[int]:
    scaled = truncation.scale(torch.tensor(logits), params.temperature)
    return [int(token) for token in truncation.kept(scaled, params).nonzero().squeeze(1).tolist()]


def test_top_k_keeps_exactly_k_the_lowest_ids_among_equals() -> None:
    assert kept_ids([1.0, 2.0, 1.0, 1.0, 2.0], SamplingParams(top_k=3)) == [0, 1, 4]
    assert kept_ids([0.0, 0.0, 0.0], SamplingParams(top_k=2)) == [0, 1]
    assert kept_ids([0.0, 1.0], SamplingParams(top_k=5)) == [0, 1]


def test_nucleus_is_the_shortest_run_that_reaches_its_mass() -> None:
    assert kept_ids([0.0, 0.0, 0.0, 0.0], SamplingParams(top_p=0.5)) == [0, 1]
    assert kept_ids([0.0, 0.0, 0.0, 0.0], SamplingParams(top_p=0.51)) == [0, 1, 2]
    assert kept_ids([0.0, 9.0, 0.0], SamplingParams(top_p=1e-9)) == [1]


def test_nucleus_counts_the_mass_that_top_k_left() -> None:
    assert kept_ids([0.0, 0.0, 0.0, 0.0], SamplingParams(top_k=2, top_p=0.5)) == [0]


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = torch.tensor([1.0, 0.5, 0.25]).log().tolist()
    assert kept_ids(logits, SamplingParams(min_p=0.4)) == [0, 1]
    assert kept_ids([3.0, 3.0, 2.9], SamplingParams(min_p=1.0)) == [0, 1]


def test_a_wide_nucleus_needs_the_whole_row() -> None:
    assert kept_ids([0.0] * 5000, SamplingParams(top_p=0.9)) == list(range(4500))


@pytest.mark.parametrize("temperature", [1e-320, 1e-12, 2.0])
def test_extreme_temperatures_stay_finite_and_keep_ties(temperature: float) -> None:
    scaled = truncation.scale(torch.tensor([500.0, 500.0, -500.0]), temperature)
    assert scaled[:2].tolist() == [0.0, 0.0]
    assert scaled[2] < 0


WITHOUT_COMPILER = """
import torch
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.sampling.noise import native_kernel
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow
sampler = Sampler(50, (0,))
assert native_kernel() is None
print(sampler.pick(torch.arange(50.0)[None], [SamplingRow(SamplingParams(top_p=0.9), 3, 0)])[0])
"""


def test_torch_serves_where_no_compiler_exists(tmp_path: Path) -> None:
    own = {"PROLEPSIS_CACHE": str(tmp_path), "PROLEPSIS_NATIVE": "build"}  # nor a library that was built before
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER],
        env={"PATH": "", "CXX": "no-such-compiler", "PYTHONPATH": ":".join(sys.path), **own},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no C++ compiler" in done.stdout + done.stderr
    assert 0 <= int(done.stdout.splitlines()[-1]) < 50


def test_threads_share_rows_without_changing_tokens() -> None:
    if native_kernel() is None:
        pytest.skip("no compiled sampling kernel on this machine")
    logits = torch.randn(23, 500, generator=torch.Generator().manual_seed(5))
    rows = [SamplingRow(SamplingParams(top_p=0.9, seed=i), 100 + i, i) for i in range(23)]
    alone = [Sampler(500, ()).pick(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    for threads in (1, 2, 3, 2):
        assert Sampler(500, (), team=team(threads)).pick(logits, rows) == alone
