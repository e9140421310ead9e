"""Continuations on a real forward, with the proposers that keep K/V or read hidden states of their own."""

from collections.abc import Callable
from functools import cache

import pytest

from prolepsis.core.plan import SpecPlan
from prolepsis.engine.build import assemble
from prolepsis.engine.step import Engine
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.exact import test_early_exit as exits
from tests.exact.cuts import Answer, check_cuts, serve
from tests.exact.oracle import CONFIG, PARAMS, PROMPT, Oracle, ask, at_any_price, target

pytestmark = NEEDS_KERNELS

CUTS = (0, 1, 20, 21, 22, 52, 53, 54, 69)  # the prompt has 75 tokens, a page 32


@cache
def undisturbed(name: str, n: int = 1) -> Answer:
    return serve(assemble(CONFIG, target()), ask(name, n=n))[name]


def with_head(name: str) -> Engine:
    head = Oracle([(*PROMPT, *sample.tokens) for sample in undisturbed(name, 2).values()])
    return at_any_price(assemble(CONFIG.model_copy(update={"kv_memory": "1MiB"}), target(), head=head))


ENGINES: dict[str, Callable[[str], Engine]] = {
    "plain": lambda _: assemble(CONFIG, target()),
    "free": lambda _: at_any_price(
        assemble(CONFIG.model_copy(update={"proposers": ("suffix", "prompt_lookup")}), target())
    ),
    "head": with_head,
}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", PARAMS)
def test_cuts_at_pages_and_elsewhere(name: str, kind: str) -> None:
    answer = undisturbed(name)
    cuts = [(count,) for count in CUTS if count < len(answer[0].tokens)]
    engine = ENGINES[kind](name)
    check_cuts(engine, ask(name), answer, cuts, SpecPlan(fixed_depth=4))
    assert not any(engine.speculation.proposers.failures.values())


@pytest.mark.parametrize("kind", ENGINES)
def test_samples_share_the_prompt_and_go_on_from_their_own_cuts(kind: str) -> None:
    answer = undisturbed("sampled", 2)
    cuts = [(0, 33), (40, 1), (70, 5), (69, 70)]
    check_cuts(ENGINES[kind]("sampled"), ask("sampled", n=2), answer, cuts, SpecPlan(fixed_depth=4))


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_early_exits_catch_up(name: str) -> None:
    answer = serve(assemble(exits.CONFIG, exits.target()), ask(name))[name]
    engine = exits.with_exit()
    check_cuts(engine, ask(name), answer, [(count,) for count in CUTS], SpecPlan(fixed_depth=4))
    assert not any(engine.speculation.proposers.failures.values())
