"""Machines that were published: each is near its published times, and reads like a measured one."""

from importlib.resources import files

import pytest

from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.lab.virtual_engine.machine import Machine
from prolepsis.lab.virtual_engine.roofline import read_machine, shipped

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
