"""One engine, one step at a time."""

from tests.fakes import Room, build, outputs, reference, request, run, terminals

from prolepsis.core.events import Finished
from prolepsis.sampling.noise import noise_key


def test_greedy_request_decodes_as_the_reference() -> None:
    source = request("a", [1, 2, 3])
    events = run(build(Room()), source)
    assert outputs(events)["a", 0] == reference(source, noise_key(0, 0))
    assert isinstance(terminals(events)["a"], Finished)
