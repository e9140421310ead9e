"""The Helm chart, rendered: Kubernetes' schemas, the drain, the scaling, the settings and the secrets."""

import json
import math
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

import prolepsis
from prolepsis.control.store.signing import FILE_NAME
from prolepsis.core.config import ServerConfig
from prolepsis.core.terminal.config import field_names, load_settings
from prolepsis.server.front.key_file import default_key_file
from prolepsis.server.run import ABORT_GRACE_S
from tests.deploy.written import CHART, image_variables, read_yaml

TWO_POOLS = {
    "region": "eu-1",
    "pools": {
        "standard": {"scaling": {"maxReplicas": 6}},
        "gpu": {
            "config": {"device": "cuda", "shutdown_s": 60, "max_requests": 128},
            "image": {"tag": "cuda"},
            "replicas": 1,
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "nodeSelector": {"pool": "gpu"},
        },
    },
}


def rendered(values: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the chart's objects: by helm, or by its library; skips without both."""
    if helm := shutil.which("helm"):
        command = [helm, "template", "demo", str(CHART), "--namespace", "prod", "--values", "-"]
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=True)
        return [one for one in yaml.safe_load_all(done.stdout) if one]
    library = pytest.importorskip("helm_python", reason="neither helm nor helm-python-sdk: pip install --group deploy")
    with library.Chart.load(str(CHART)) as chart:
        texts = chart.render(dict(values), name="demo", namespace="prod").values()
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return rendered(TWO_POOLS)


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def test_the_chart_is_of_this_version() -> None:
    assert read_yaml(CHART / "Chart.yaml")["appVersion"] == prolepsis.__version__


def test_the_values_are_settings() -> None:
    values = read_yaml(CHART / "values.yaml")
    given = set(values["config"]).union(*(pool["config"] for pool in values["pools"].values()))
    assert given <= set(field_names())


def test_kubernetes_knows_every_object(objects: list[dict[str, Any]]) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate: pip install --group deploy")
    ours = [one for one in objects if not one["apiVersion"].startswith("keda.sh/")]
    assert len(ours) == 9
    for one in ours:
        schemas.validate(one, "1.30", strict=True)


def test_each_pool_has_its_servers_service_and_budget(objects: list[dict[str, Any]]) -> None:
    deployments = of_kind(objects, "Deployment")
    assert set(deployments) == {"demo-standard", "demo-gpu"}
    for kind in ("Service", "PodDisruptionBudget"):
        for name, one in of_kind(objects, kind).items():
            selector = one["spec"]["selector"]
            labels = deployments[name]["spec"]["template"]["metadata"]["labels"]
            assert selector.get("matchLabels", selector).items() <= labels.items()
    assert deployments["demo-gpu"]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}


def test_the_server_accepts_its_file_and_has_time_to_drain(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    for name, config in of_kind(objects, "ConfigMap").items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(config["data"]["prolepsis.yaml"])
        server = load_settings({}, {}, file).server
        spec = of_kind(objects, "Deployment")[name]["spec"]["template"]["spec"]
        waits = int(server_container(spec)["lifecycle"]["preStop"]["exec"]["command"][-1])
        assert spec["terminationGracePeriodSeconds"] >= waits + math.ceil(server.shutdown_s + ABORT_GRACE_S) + 10
        assert server.region == "eu-1"


def server_container(spec: dict[str, Any]) -> dict[str, Any]:
    [container] = spec["containers"]
    assert isinstance(container, dict)
    return container


def test_writes_go_to_volumes_and_the_root_is_read_only(objects: list[dict[str, Any]]) -> None:
    variables = image_variables()
    for one in of_kind(objects, "Deployment").values():
        container = server_container(one["spec"]["template"]["spec"])
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {variables["PROLEPSIS_DATA"], variables["PROLEPSIS_CACHE"], "/tmp"}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_secret_has_the_names_that_the_code_uses(objects: list[dict[str, Any]]) -> None:
    for one in of_kind(objects, "Deployment").values():
        spec = one["spec"]["template"]["spec"]
        [volume] = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
        assert {item["key"] for item in volume["items"]} == {default_key_file().name, FILE_NAME}
        read = [
            entry["valueFrom"]["secretKeyRef"]["key"] for entry in server_container(spec)["env"] if "valueFrom" in entry
        ]
        assert set(read) <= set(field_names())


def test_a_pool_that_scales_asks_for_the_age_of_its_own_queue(objects: list[dict[str, Any]]) -> None:
    [scaled] = of_kind(objects, "ScaledObject").values()
    [trigger] = scaled["spec"]["triggers"]
    promql_parser.parse(trigger["metadata"]["query"])
    assert re.findall(r"prolepsis_\w+", trigger["metadata"]["query"]) == ["prolepsis_admission_queue_age_seconds"]
    assert float(trigger["metadata"]["threshold"]) < ServerConfig().shed_after_s[0]
    assert "replicas" not in of_kind(objects, "Deployment")["demo-standard"]["spec"]


def test_an_open_network_is_a_choice() -> None:
    kinds = {one["kind"] for one in rendered({"networkPolicy": {"enabled": False}})}
    assert "NetworkPolicy" not in kinds
