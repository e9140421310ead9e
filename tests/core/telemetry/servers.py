"""The metrics of a server with all of its features, for tests that look at every series."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fastapi import FastAPI

from prolepsis.adapters.upstream.metrics import UpstreamMetrics
from prolepsis.control.controls.flag_file import FlagFile
from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.store.store import open_store
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.device import DeviceCollector, DeviceReading
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import Member
from tests.control.controls.flag_files import flag, write
from tests.control.store.databases import migrated_setting
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine

PRICES = "version: 1\ncurrency: EUR\nprices: [{name: a, per_device_hour: 3.6}]\n"


class FakeDevices:
    """Two GPUs, of which the second is hot."""

    def __init__(self) -> None:
        self.error: OSError | None = None

    def read(self) -> list[DeviceReading]:
        if self.error is not None:
            raise self.error
        return [
            DeviceReading("0", 2**30, 2**36, 0.5, 300.0, 60.0, is_throttled=False),
            DeviceReading("1", 2**31, 2**36, 1.0, 690.0, 88.0, is_throttled=True),
        ]


@contextmanager
def server_with_everything(folder: Path) -> Iterator[tuple[FastAPI, Metrics]]:
    """Yield an application whose features are all there, with the metrics that it feeds."""
    metrics, engine = Metrics(), FakeEngine()
    DeviceCollector(metrics.registry, FakeDevices())
    UpstreamMetrics(metrics.registry)
    config = ServerConfig(
        store=migrated_setting(folder),
        controls_file=folder / "controls.json",
        replay_sample=0.0,
        traces="http://127.0.0.1:9",
        alertmanager="http://127.0.0.1:9",
    )
    (folder / "policy.yaml").write_text("default: {mode: on}\n")
    (folder / "prices.yaml").write_text(PRICES)
    policy = folder / "policy.yaml"
    flags = FlagFile(write(folder / "flags.json", flag()))
    prices = PriceFile(folder / "prices.yaml")
    with closing(open_store(config.store, metrics.registry)) as store:
        client, tokenizer = Engines([Member(engine)], metrics.registry), ByteTokenizer()
        app = build(config, client, tokenizer, metrics, policy=policy, flags=flags, store=store, prices=prices)
        yield app, metrics
