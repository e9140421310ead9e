"""A whole server is killed under load: what it had called written is there, and the chain verifies."""

from prolepsis.core.config import ServerConfig
from tests.server_process import ServerProcess, serve_fake
from tests.simulation.crash import killed_under_load


def test_written_items_survive_a_killed_server(setting: str) -> None:
    config = ServerConfig(store=setting, audit_sample=1.0, replay_sample=0.0)

    def start(port: int) -> ServerProcess:
        return ServerProcess(serve_fake, config.model_copy(update={"port": port}))

    found = killed_under_load(start, setting, seconds=0.2, num_answers=100)
    assert found["answered"] >= 100
    assert (found["records_lost"], found["entries_lost"], found["faults_of_the_chain"]) == (0, 0, 0)
    assert found["dropped"] == 0
    assert found["written"] > 0
