"""A machine that is fitted to steps takes what they took."""

import asyncio
import random
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from prolepsis.engine.drafting.cost import CostCurve, flat_cost
from prolepsis.lab.virtual_engine.machine import Machine, PassWork, ProposerCost
from prolepsis.lab.virtual_engine.measure import MeasuredSteps, StepSample, fitted_machine
from prolepsis.lab.virtual_engine.roofline import read_machine, shipped
from prolepsis.lab.virtual_engine.virtual_time import VirtualTime

TRUE = Machine(
    passes=CostCurve((1, 8, 64, 512), (0, 8192), [(5.0, 9.0), (6.0, 10.0), (20.0, 24.0), (140.0, 144.0)]),
    expected=flat_cost(),
    logits_ms=0.05,
    first_ms=2.0,
    step_ms=0.3,
    row_ms=0.02,
    token_ms=0.03,
    draft_ms=0.2,
)


def works(number: int) -> Iterator[PassWork]:
    chance = random.Random(0)
    for _ in range(number):
        sequences = chance.randint(1, 24)
        drafts = chance.randint(0, sequences)
        prompt = chance.choice((0, 0, 0, 16, 100, 300))
        logits = sequences + chance.randint(1, 8) * drafts
        yield PassWork(logits + prompt, 200 * sequences, sequences, logits, drafts, prompt, chance.random() < 0.1)


def test_passes_and_steps_are_found_again_behind_the_work_of_others() -> None:
    chance, head = random.Random(1), ProposerCost(states_ms=0.4, state_ms=0.002, takes_states=True)
    steps = []
    for work in works(3000):
        disturbed = 8.0 if chance.random() < 0.03 else 1.0
        taken_ms = (head.states_ms + head.state_ms * work.num_fed) if work.num_fed else 0.0
        pass_ms, host_ms = disturbed * TRUE.expected_pass_ms(work), TRUE.host_ms(work) + taken_ms
        steps.append(StepSample(work, pass_ms, pass_ms + host_ms))
    kinds = {"draft_head": ProposerCost(takes_states=True)}
    machine = fitted_machine(replace(TRUE, proposers=kinds), flat_cost(4.0, 0.3), MeasuredSteps(steps))
    for work in works(50):
        mean = sum(machine.pass_ms(work, chance) for _ in range(2000)) / 2000
        assert mean == pytest.approx(TRUE.expected_pass_ms(work) * (0.97 + 0.03 * 8.0), rel=0.2), "others' work counts"
        assert machine.host_ms(work) == pytest.approx(TRUE.host_ms(work), rel=0.05)
    assert machine.proposers["draft_head"].states_ms == pytest.approx(0.4, rel=0.05)


def test_a_machine_that_served_nothing_takes_what_its_passes_do() -> None:
    machine = fitted_machine(TRUE, TRUE.passes, MeasuredSteps())
    assert machine.expected_pass_ms(PassWork(64, 0, 1, 64, 0, 0)) == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize("most", [64, 300, 512, 2048])
def test_passes_beyond_the_largest_measured_one_are_extrapolated_and_said_to_be(most: int) -> None:
    """A pass takes as long as its tokens. No step was as large as two times the largest."""
    sizes = (1, 8, 64, most) if most > 64 else (1, 8, 64)
    passes = CostCurve(sizes, (0, 8192), [(5.0 + tokens, 9.0 + tokens) for tokens in sizes])
    steps = [StepSample(PassWork(tokens, 0, 3, 0, 0, 0), 5.0 + tokens, 6.0 + tokens) for tokens in range(1, 40)]
    machine = fitted_machine(TRUE, passes, MeasuredSteps(steps))
    assert machine.passes.tokens[-1] == 2 * most
    for tokens in (2 * most, 4 * most):
        assert machine.passes.ms(tokens, 0) == pytest.approx(5.0 + tokens, rel=0.15)
    assert machine.not_measured(most, 3) is None
    assert machine.not_measured(most + 1, 1) == f"passes of {most + 1} tokens, above {most}, were not measured"
    assert machine.not_measured(1, 4) == "passes of 4 sequences, above 3, were not measured"


SHIPPED = shipped()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_roofline_takes_what_was_published(name: str) -> None:
    """Its two shares are solved from the first two times; others show how good it is."""
    one = SHIPPED[name]
    errors = [abs(one.ms(time.tokens, time.context) / time.ms - 1.0) for time in one.times]
    assert max(errors[:2]) < 0.01
    assert max(errors) < 0.4
    assert all(source.startswith("https://") for source in one.sources)


@pytest.mark.parametrize("name", SHIPPED)
def test_its_machine_says_that_it_is_published(name: str) -> None:
    one = SHIPPED[name]
    machine = one.machine()
    assert machine.published.startswith(one.device)
    assert not machine.fingerprint
    assert machine.engine.max_step_tokens == machine.measured_tokens == max(time.tokens for time in one.times)
    for time in one.times:
        assert machine.passes.ms(time.tokens, time.context) == pytest.approx(
            one.ms(time.tokens, time.context), rel=0.02
        )
    assert machine.proposers["suffix"].free
    assert 0.0 < machine.proposers["draft_head"].level_ms < 0.3 * one.ms(1, 0)
    room = machine.engine.num_pages * 32 * one.kv_bytes_per_token + 1e9 * one.weights_gb
    assert room < 1e9 * one.memory_gb


def test_a_file_is_measured_or_a_roofline() -> None:
    measured = Machine(passes=flat_cost(), expected=flat_cost(), published="elsewhere")
    assert read_machine(measured.to_json()).to_json() == measured.to_json()
    text = (files("prolepsis.lab.virtual_engine") / "machines" / "trn2-llama-70b.json").read_text()
    assert read_machine(text).to_json() == SHIPPED["trn2-llama-70b"].machine().to_json()
    with pytest.raises(ValueError, match="unknown field"):
        read_machine(text.replace("gflop_per", "gflops_per"))
    with pytest.raises(ValueError, match="not a measured machine"):
        read_machine("{}")


def run(work: Coroutine[Any, Any, float]) -> float:
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(work)


def test_an_hour_passes_at_once() -> None:
    async def hour() -> float:
        await asyncio.sleep(3600.0)
        return asyncio.get_running_loop().time()

    assert run(hour()) == 3600.0


def test_work_for_a_thread_runs_at_once_in_this_one() -> None:
    async def threads() -> float:
        assert await asyncio.to_thread(threading.get_ident) == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        return asyncio.get_running_loop().time()

    assert run(threads()) == 0.0
