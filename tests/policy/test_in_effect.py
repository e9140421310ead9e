"""Who wins where: policy or caller."""

import pytest

from prolepsis.policy.explain import NO_WISH, Wish, conflict, in_effect
from prolepsis.policy.model import Mode, Terms


@pytest.mark.parametrize(
    ("given", "asked", "mode", "forced", "source"),
    [
        ("off", "auto", "off", False, "policy"),
        ("shadow", "auto", "shadow", False, "policy"),
        ("on", "auto", "on", False, "policy"),
        ("on", "off", "off", False, "caller"),
        ("shadow", "off", "off", False, "caller"),
        ("off", "on", "on", True, "caller"),
        ("on", "on", "on", True, "caller"),
        ("on", "shadow", "shadow", False, "caller"),
    ],
)
def test_the_mode(given: Mode, asked: str, mode: Mode, forced: bool, source: str) -> None:
    effect = in_effect("r", Terms(mode=given), Wish(mode=asked))  # type: ignore[arg-type]
    assert (effect.mode, effect.forced, effect.sources["mode"]) == (mode, forced, source)


@pytest.mark.parametrize(
    ("ceiling", "depth", "num"), [(8, 4, 4), (8, 16, 8), (None, 4, 4), (8, None, 8), (None, None, None)]
)
def test_nobody_goes_beyond_the_ceiling(ceiling: int | None, depth: int | None, num: int | None) -> None:
    effect = in_effect("r", Terms("on", num_speculative_tokens=ceiling), Wish(max_depth=depth))
    assert effect.num_speculative_tokens == num


def test_depth_0_turns_it_off() -> None:
    for wish in (Wish(max_depth=0), Wish("on", max_depth=0)):
        effect = in_effect("r", Terms("on"), wish)
        assert (effect.mode, effect.forced, effect.sources["mode"]) == ("off", False, "caller")


def test_proposers_are_narrowed_never_widened() -> None:
    terms = Terms("on", proposers=("suffix", "grammar"))
    assert in_effect("r", terms, Wish(proposer="suffix")).proposers == ("suffix",)
    assert in_effect("r", terms, NO_WISH).proposers == ("suffix", "grammar")
    against = conflict("r", terms, Wish(proposer="draft_head"))
    assert against is not None
    assert (against.param, "'r': suffix, grammar" in against.message) == ("speculation.proposer", True)
    assert conflict("r", Terms("on"), Wish(proposer="draft_head")) is None


def test_emit_is_the_callers_where_one_is_given() -> None:
    assert in_effect("r", Terms("on", emit="token"), NO_WISH).emit == "token"
    assert in_effect("r", Terms("on", emit="token"), Wish(emit="block")).emit == "block"
    assert in_effect("r", Terms("on"), Wish(emit="token")).emit == "token"


@pytest.mark.parametrize(
    ("mode", "wish", "param"),
    [
        ("off", Wish("on"), "speculation.mode"),
        ("off", Wish("shadow"), "speculation.mode"),
        ("on", Wish("off"), "speculation.mode"),
        ("on", Wish("on"), "speculation.mode"),  # it would force what does not pay
        ("on", Wish(max_depth=0), "speculation.max_depth"),
        ("shadow", Wish(max_depth=0), "speculation.max_depth"),
        ("off", Wish(emit="token"), "speculation.emit"),
        ("off", Wish("off"), None),
        ("off", Wish(max_depth=0), None),
        ("shadow", Wish("shadow"), None),
        ("on", Wish("auto", max_depth=2), None),
        ("off", Wish(emit="block"), None),
    ],
)
def test_a_pinned_rule_is_refused_not_overridden(mode: Mode, wish: Wish, param: str | None) -> None:
    against = conflict("r", Terms(mode, pinned=True), wish)
    assert (against.param if against else None) == param
    assert conflict("r", Terms(mode), wish) is None


def test_a_share_drafts_in_shadow_and_a_larger_one_holds_it() -> None:
    keys = [f"request-{i}" for i in range(4000)]

    def drawn(percentage: float, rule: str = "r") -> set[str]:
        terms = Terms("shadow", shadow_percentage=percentage)
        return {key for key in keys if in_effect(rule, terms, NO_WISH, key).mode == "shadow"}

    assert drawn(0) == set()
    assert len(drawn(100)) == len(keys)
    ten, thirty = drawn(10), drawn(30)
    assert 400 - 80 < len(ten) < 400 + 80  # four standard deviations: 4 sqrt(4000 * 0.1 * 0.9) = 76
    assert ten < thirty
    assert len(ten & drawn(10, "another")) < 100  # drawn apart: 40 expected
    assert in_effect("r", Terms("shadow", shadow_percentage=0), NO_WISH).mode == "shadow"  # no key, nothing drawn
    effect = in_effect("r", Terms("shadow", shadow_percentage=0), NO_WISH, "k")
    assert (effect.mode, effect.sources["mode"]) == ("off", "shadow_percentage")
    assert in_effect("r", Terms("shadow", shadow_percentage=0), Wish("shadow"), "k").mode == "shadow"
