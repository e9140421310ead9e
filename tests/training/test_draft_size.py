"""Which draft pays: the lines through measured points, sizes of heads, and the speedup at known costs."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prolepsis.engine.commands.profile import rated_passes
from prolepsis.server.cli.main import app
from prolepsis.training.draft_size import HEADS, MODELS, Point, TargetSize, acceptance, best, sized_drafts
from prolepsis.training.estimate import gain
from prolepsis.training.settings import StatedStepCost
from tests.training.targets import save_target

COST = StatedStepCost(plain_ms=23.1, token_ms=2.7, draft_ms=0.6, draft_ms_per_1k=0.07)
CODER = TargetSize(1_543_714_304, 986e6, 1536, 3 * 1536 + 4 * 256, 8960)


@pytest.mark.parametrize(
    ("tokens", "target", "layers", "measured"), [(5.2e6, 135e6, 1.0, 0.612), (0.78e6, 1.54e9, 0.32, 0.63)]
)
def test_the_heads_that_we_measured_lie_in_the_interval(
    tokens: float, target: float, layers: float, measured: float
) -> None:
    rate = acceptance(HEADS, tokens, target, layers)
    assert rate is not None
    assert rate.lower < measured < rate.upper
    assert rate.upper - rate.lower < 0.6


@pytest.mark.parametrize("points", [HEADS, MODELS], ids=["heads", "models"])
def test_each_point_is_predicted_by_the_others(points: tuple[Point, ...]) -> None:
    for point in points:
        others = [other for other in points if other is not point]
        rate = acceptance(others, point.size, point.target, point.layers)
        assert rate is not None
        assert rate.lower <= point.acceptance <= rate.upper, point


def test_more_text_and_larger_drafts_accept_more() -> None:
    sizes = [1e5, 1e6, 1e7, 1e8, 1e9]
    by_text = [acceptance(HEADS, tokens, 7e9) for tokens in sizes]
    by_layers = [acceptance(HEADS, 1e7, 7e9, layers) for layers in (0.3, 0.5, 1.0)]
    by_weights = [acceptance(MODELS, weights, 70e9) for weights in (1e8, 1e9, 1e10)]
    for rates in (by_text, by_layers, by_weights):
        estimates = [rate.estimate for rate in rates if rate]
        assert len(estimates) == len(rates)
        assert estimates == sorted(set(estimates))


def test_far_from_any_point_nothing_is_known() -> None:
    assert acceptance(HEADS, 2e4, 7e9) is None
    assert acceptance(HEADS, 3e9, 7e9) is None
    assert acceptance(HEADS, 1e7, 1e12) is None
    assert acceptance(HEADS, 0, 7e9) is None
    rows = sized_drafts(TargetSize.stated(135_000_000, 4.5), COST, [10**7])
    unknown = [row for row in rows if row.basis == "not known"]
    assert [row.draft for row in unknown] == ["draft model, 1/50", "draft model, 1/20"]
    assert all((row.acceptance, row.depth, row.tokens, row.speedup) == (None,) * 4 for row in unknown)


def test_a_head_has_the_weights_of_the_shipped_ones() -> None:
    assert TargetSize(134_515_008, 97e6, 576, 3 * 576 + 4 * 192, 1536).head_weights(1536) == 5_087_232
    narrow = TargetSize(CODER.weights, 986e6, 1536, 3 * 9 * 128 + 4 * 3 * 128, 8960)
    assert narrow.head_weights(768) == pytest.approx(18.3e6, rel=0.01)


def test_a_twin_of_known_cost_has_the_speedup_of_the_formula() -> None:
    """A twin computes the same at another cost: chains are drawn, and a clock adds up what the parts take."""
    for plain_ms, token_ms, drafting_ms in ((23.1, 2.7, 3.0), (69.0, 8.1, 3.0), (11.5, 1.4, 3.0)):
        cost = StatedStepCost(plain_ms, token_ms, 0.0, 0.0)
        drawn, tokens, ms = random.Random(1), 0, 0.0
        for _ in range(20_000):
            accepted = next((i for i, rate in enumerate((0.63, 0.5, 0.5)) if drawn.random() >= rate), 3)
            tokens, ms = tokens + accepted + 1, ms + plain_ms + 3 * token_ms + drafting_ms
        assert gain([0.63, 0.5], 3, cost, drafting_ms) == pytest.approx(tokens * plain_ms / ms, rel=0.02)


def test_a_dearer_target_pays_more_for_the_same_head() -> None:
    """A twin of three times the weights in its feed-forward layers takes the same head."""
    dearer = TargetSize(3 * CODER.weights, 3 * 986e6, CODER.hidden, CODER.attention, CODER.intermediate)
    times_three = StatedStepCost(3 * COST.plain_ms, 3 * COST.token_ms, 0.0, 0.0)
    here, there = sized_drafts(CODER, COST, [10**7]), sized_drafts(dearer, times_three, [10**7])
    for row, other in zip(here[1:4], there[1:4], strict=True):
        assert row.speedup is not None
        assert other.speedup is not None
        assert other.draft_ms == pytest.approx(row.draft_ms)
        assert other.speedup.estimate > row.speedup.estimate


def test_no_draft_is_recommended_where_rows_cost_as_much_as_passes() -> None:
    rows = sized_drafts(CODER, StatedStepCost(10.0, 10.0, 0.0, 0.0), [10**6, 10**7])
    assert {best(rows, kind) for kind in ("head", "draft model")} == {"none"}
    assert best(sized_drafts(CODER, COST, [10**6, 10**7]), "head").endswith("10,000,000 tokens of text")


def test_passes_of_a_model_that_is_not_here() -> None:
    curve = rated_passes(1_000_000, 600_000, 1)
    assert 0 < curve.ms(1, 0) < curve.ms(8, 0)


def run(*arguments: str) -> tuple[int, str, str]:
    shown = CliRunner().invoke(app, ["train", "estimate", *arguments])
    return shown.exit_code, shown.stdout, shown.stderr


STATED = ("--plain-ms", "23.1", "--token-ms", "2.7")


def test_the_command_takes_a_size_or_a_model(tmp_path: Path) -> None:
    status, text, _ = run("--target", "1.5B", "--bits", "4", *STATED, "--budgets", "1M,100M", "--json")
    reply = json.loads(text)
    assert status == 0
    assert reply["target"]["weights"] == 1_500_000_000
    assert reply["target"]["bytes_per_pass"] == 750_000_000
    assert reply["passes"] == {"plain_ms": 23.1, "token_ms": 2.7, "basis": "stated"}
    assert [row["text"] for row in reply["drafts"][:3]] == [None, 10**6, 10**8]
    assert reply["recommended"]["head"].startswith("head, MLP")
    status, text, _ = run("--target", str(save_target(tmp_path)), *STATED)
    assert status == 0
    assert "not known" in text  # no point is near so small a model
    assert "recommended head         none" in text


@pytest.mark.parametrize("options", [("--sizes", "1k,2k"), ("--check", "."), ("--draft-ms", "1")])
def test_an_option_of_small_runs_needs_their_directory(options: tuple[str, str]) -> None:
    status, _, error = run("--target", "7B", *options)
    assert status == 2
    assert "allowed: with --out" in error


def test_a_size_of_nothing_is_no_target() -> None:
    status, _, error = run("--target", "0B", *STATED)
    assert status == 3
    assert "'0B' is neither a path" in error
