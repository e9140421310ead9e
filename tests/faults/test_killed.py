"""A whole server is killed under load: what it had called written is there, and the chain verifies."""

import sys

from tests.simulation.crash import killed_under_load

SCRIPT = """
import sys
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.api.run import StartedEngine, serve
from prolepsis.telemetry.logs import configure_logs
from tests.api.fakes import ByteTokenizer, FakeEngine

configure_logs("error")
config = ServerConfig(port=int(sys.argv[2]), store=sys.argv[1], audit_sample=1.0, replay_sample=0.0)
serve(EngineConfig(), config, lambda c, m: StartedEngine(FakeEngine(), ByteTokenizer()))
"""


def test_what_a_killed_server_had_called_written_is_there(setting: str) -> None:
    found = killed_under_load([sys.executable, "-c", SCRIPT, setting], setting, seconds=1.5)
    assert found["answered"] > 20
    assert (found["records_lost"], found["entries_lost"], found["faults_of_the_chain"]) == (0, 0, 0)
    assert found["dropped"] == 0
    assert found["written"] > 0
