import math

import pytest
import torch

from prolepsis.engine.sampling.noise import gumbel, native_kernel, noise_key, position_key, reference_gumbel

EULER = 0.5772156649015329


def test_noise_never_changes_between_versions() -> None:
    assert noise_key(0, 0) == 12035550249420947055
    assert [value.hex() for value in gumbel(noise_key(7, 1), 3, torch.tensor([0, 1, 49151])).tolist()] == [
        "0x1.dbf3030e56f67p+1",
        "0x1.e46e37a2750e1p-1",
        "0x1.ed36367816812p-2",
    ]


def test_compiled_noise_equals_torch_to_the_bit() -> None:
    if native_kernel() is None:
        pytest.skip("no compiled sampling kernel on this machine")
    tokens = torch.arange(200_003)
    for key in (0, 2**64 - 1, noise_key(1, 0)):
        assert torch.equal(gumbel(key, 5, tokens), reference_gumbel(position_key(key, 5), tokens))


def test_a_subset_of_tokens_has_the_noise_of_the_whole_vocabulary() -> None:
    whole = gumbel(11, 2, torch.arange(1000))
    subset = torch.tensor([999, 0, 17, 512, 17])
    assert torch.equal(gumbel(11, 2, subset), whole[subset])
    assert torch.equal(gumbel(11, 2, subset.to(torch.int32)), whole[subset])
    assert torch.equal(gumbel(11, 2, torch.arange(0, 1000, 7)), whole[::7])


def test_noise_is_standard_gumbel() -> None:
    noise = torch.cat([gumbel(noise_key(seed, 0), 0, torch.arange(50_000)) for seed in range(10)])
    assert float(noise.mean()) == pytest.approx(EULER, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.02)
    for level in (-1.0, 0.0, 1.0, 5.0):
        assert float((noise <= level).double().mean()) == pytest.approx(math.exp(-math.exp(-level)), abs=0.003)


def test_logarithm_is_accurate_where_noise_is_large() -> None:
    # the uniform of a value g is exp(-exp(-g)); recompute g from it with the platform's own logarithm
    noise = gumbel(3, 0, torch.arange(100_000))
    exponential = torch.exp(-noise)
    assert torch.allclose(-torch.log(exponential), noise, rtol=0, atol=1e-13)
    uniform = torch.exp(-exponential) * 2**53
    assert float((uniform - uniform.round()).abs()[uniform < 2**40].max()) < 0.01


def test_keys_of_samples_seeds_and_positions_differ() -> None:
    keys = {
        position_key(noise_key(seed, index), position)
        for seed in range(20)
        for index in range(8)
        for position in range(50)
    }
    assert len(keys) == 20 * 8 * 50
    assert all(0 <= key < 2**64 for key in keys)


def test_noise_of_neighbouring_positions_samples_and_seeds_is_uncorrelated() -> None:
    tokens = torch.arange(50_000)
    base = gumbel(noise_key(5, 0), 7, tokens)
    others = [
        gumbel(noise_key(5, 0), 8, tokens),
        gumbel(noise_key(5, 1), 7, tokens),
        gumbel(noise_key(6, 0), 7, tokens),
    ]
    others.append(torch.roll(base, 1))
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack((base, other)))[0, 1])) < 0.02
