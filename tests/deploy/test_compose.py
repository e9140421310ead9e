"""The compose file: its parts fit one another and the server."""

import re
from pathlib import Path
from typing import Any

import pytest

from prolepsis.core.terminal.config import load_settings
from prolepsis.ops.console.dashboards import DASHBOARDS
from prolepsis.server.run import ABORT_GRACE_S
from tests.deploy.written import COMPOSE, image_variables, read_yaml
from tests.paths import ROOT

COMPOSED = read_yaml(COMPOSE)
SERVICES: dict[str, Any] = COMPOSED["services"]
SERVER = SERVICES["prolepsis"]


def test_the_server_accepts_its_settings_and_has_time_to_drain() -> None:
    settings = load_settings({}, {**image_variables(), **SERVER["environment"]}, directory=COMPOSE.parent)
    grace = float(SERVER["stop_grace_period"].removesuffix("s"))
    assert grace >= settings.server.shutdown_s + ABORT_GRACE_S + 10
    assert settings.server.store.startswith("postgresql://")


def test_the_root_is_read_only_and_the_volumes_are_the_images() -> None:
    targets = [volume.split(":")[1] for volume in SERVER["volumes"]]
    variables = image_variables()
    assert SERVER["read_only"] is True
    assert targets == [variables["PROLEPSIS_DATA"], variables["PROLEPSIS_CACHE"]]


@pytest.mark.parametrize("name", SERVICES)
def test_mounts_and_dependencies_of_services_exist(name: str) -> None:
    service = SERVICES[name]
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        exists = (COMPOSE.parent / source).exists() if source.startswith(".") else source in COMPOSED["volumes"]
        assert exists, volume
    assert set(service.get("depends_on", {})) <= set(SERVICES)
    assert set(service.get("secrets", [])) <= set(COMPOSED["secrets"])


def test_prometheus_is_configured_as_ours_but_for_addresses_and_the_key() -> None:
    ours = read_yaml(ROOT / "monitoring" / "prometheus.yaml")
    composed = read_yaml(COMPOSE.parent / "prometheus.yaml")
    [job] = composed["scrape_configs"]
    key = job.pop("authorization")
    assert Path(key["credentials_file"]) == Path("/run/secrets") / SERVICES["prometheus"]["secrets"][0]
    assert _hosts(composed) <= set(SERVICES)
    assert _without_hosts(composed) == _without_hosts(ours)


def test_the_rules_are_mounted_where_prometheus_looks_for_them() -> None:
    [pattern] = read_yaml(COMPOSE.parent / "prometheus.yaml")["rule_files"]
    [folder] = {Path(volume.split(":")[1]) for volume in SERVICES["prometheus"]["volumes"] if "rules" in volume}
    assert folder / "*.yaml" == Path("/etc/prometheus") / pattern


def test_grafana_reads_our_prometheus_and_the_dashboards_that_are_written() -> None:
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    [source] = read_yaml(COMPOSE.parent / "grafana" / "datasource.yaml")["datasources"]
    [provider] = read_yaml(COMPOSE.parent / "grafana" / "dashboards.yaml")["providers"]
    [folder] = [Path(here) for here, there in mounts.items() if there == provider["options"]["path"]]
    assert {file.stem for file in (COMPOSE.parent / folder).glob("*.json")} == set(DASHBOARDS)
    port = SERVICES["prometheus"]["ports"][0].rpartition(":")[2]
    assert (source["type"], source["url"]) == ("prometheus", f"http://prometheus:{port}")


def test_the_console_links_to_grafana() -> None:
    address, _, _ = SERVICES["grafana"]["ports"][0].rpartition(":")
    assert SERVER["environment"]["PROLEPSIS_GRAFANA_URL"] == f"http://{address}"


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"prolepsis"}))
def test_images_of_others_have_a_version(name: str) -> None:
    assert re.fullmatch(r"docker\.io/\S+:v?\d+\.\d+(\.\d+)?", SERVICES[name]["image"])


def _hosts(config: Any) -> set[str]:
    return {target.rpartition(":")[0] for group in _groups(config) for target in group["targets"]}


def _without_hosts(config: Any) -> Any:
    for group in _groups(config):
        group["targets"] = [target.rpartition(":")[2] for target in group["targets"]]
    return config


def _groups(config: Any) -> list[Any]:
    parts = [*config["alerting"]["alertmanagers"], *config["scrape_configs"]]
    return [group for part in parts for group in part["static_configs"]]
