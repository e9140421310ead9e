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
from tests.paths import ROOT

RULES = ROOT / "monitoring" / "rules"
CUSTOM: dict[str, Any] = read_yaml(Path(__file__).parent / "custom_resources.yaml")
EVERYTHING = {
    "region": "eu-1",
    "serviceAccount": {"annotations": {"example.org/role": "models"}},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    "cache": {"claim": {"size": "50Gi"}},
    "hosts": {"llm.example.org": "standard", "*.gpu.example.org": "gpu"},
    "ingress": {"enabled": True, "className": "haproxy", "tlsSecret": "certificate"},
    "httpRoute": {"parentRefs": [{"name": "outside", "namespace": "edge"}]},
    "monitoring": {
        "serviceMonitor": True,
        "labels": {"release": "prometheus"},
        "rules": {file.stem: file.read_text() for file in RULES.glob("*.yaml")},
    },
    "pools": {
        "standard": {"scaling": {"maxReplicas": 6}, "proposer": "drafts"},
        "gpu": {
            "config": {"device": "cuda", "shutdown_s": 60, "max_requests": 128},
            "image": {"tag": "cuda"},
            "replicas": 1,
            "resources": {"limits": {"nvidia.com/gpu": 1}},
            "nodeSelector": {"pool": "gpu"},
            "affinity": {"nodeAffinity": {}},
            "scaling": {"maxReplicas": 3, "by": "adapter"},
        },
        "drafts": {
            "proposes": "suffix",
            "resources": {"limits": {"cpu": "2", "memory": "2Gi"}},
            "scaling": {"maxReplicas": 4},
        },
    },
}


class Refused(Exception):
    """The chart takes no such values; says why."""


def rendered(values: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the chart's objects: by helm, or by its library; skips without both. Raises `Refused`."""
    if helm := shutil.which("helm"):
        command = [helm, "template", "demo", str(CHART), "--namespace", "prod", "--values", "-"]
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(done.stderr)
        return [one for one in yaml.safe_load_all(done.stdout) if one]
    library = pytest.importorskip("helm_python", reason="neither helm nor helm-python-sdk: pip install --group deploy")
    with library.Chart.load(str(CHART)) as chart:
        try:
            texts = chart.render(dict(values), name="demo", namespace="prod")
        except library.HelmError as error:
            raise Refused(str(error)) from error
    return [one for name, text in texts.items() if name.endswith(".yaml") for one in yaml.safe_load_all(text) if one]


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return rendered(EVERYTHING)


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
    ours = [one for one in objects if one["kind"] not in CUSTOM]
    assert {"Ingress", "HorizontalPodAutoscaler", "PersistentVolumeClaim", "ServiceAccount"} < {
        one["kind"] for one in ours
    }
    for one in ours:
        schemas.validate(one, "1.30", strict=True)


@pytest.mark.parametrize("kind", CUSTOM)
def test_custom_resources_have_known_fields(objects: list[dict[str, Any]], kind: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema, which kubernetes-validate brings")
    found = of_kind(objects, kind)
    assert found
    for one in found.values():
        jsonschema.validate(one["apiVersion"], CUSTOM[kind]["apiVersion"])
        jsonschema.validate(one["spec"], {"type": "object", **CUSTOM[kind]["spec"]})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"ingres": {"enabled": True}}, "ingres"),
        ({"pools": {"standard": {"replica": 3}}}, "replica"),
        ({"pools": {"standard": {"replicas": "3"}}}, "replicas"),
        ({"cache": {"claim": {"accessMode": "ReadWriteMany"}}}, "size"),
        ({"ingress": {"enabled": True}}, "hosts is empty"),
        ({"hosts": {"a.example.org": "gold"}, "ingress": {"enabled": True}}, 'hosts.a.example.org is "gold"'),
        ({"pools": {"standard": {"proposer": "standard"}}}, 'pools.standard.proposer is "standard"'),
        (
            {"pools": {"drafts": {"proposes": "suffix", "scaling": {"maxReplicas": 2, "by": "keda"}}}},
            "allowed for a pool",
        ),
    ],
)
def test_a_mistake_is_named(values: dict[str, object], named: str) -> None:
    with pytest.raises(Refused, match=re.escape(named)):
        rendered(values)


def test_the_values_of_the_chart_are_all_in_its_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = read_yaml(CHART / "values.yaml")
    assert set(values) | {"global"} == set(schema["properties"])
    assert set(values["pools"]["standard"]) == set(schema["definitions"]["pool"]["properties"])


def test_each_pool_has_its_servers_service_and_budget(objects: list[dict[str, Any]]) -> None:
    deployments = of_kind(objects, "Deployment")
    assert set(deployments) == {"demo-standard", "demo-gpu", "demo-drafts"}
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
        assert "/models" in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_secret_has_the_names_that_the_code_uses(objects: list[dict[str, Any]]) -> None:
    servers, proposer = {default_key_file().name, FILE_NAME}, {"proposer.key"}
    keys = {"demo-standard": servers | proposer, "demo-gpu": servers, "demo-drafts": proposer}
    for name, one in of_kind(objects, "Deployment").items():
        spec = one["spec"]["template"]["spec"]
        [volume] = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
        assert {item["key"] for item in volume["items"]} == keys[name]
        read = [
            entry["valueFrom"]["secretKeyRef"]["key"] for entry in server_container(spec)["env"] if "valueFrom" in entry
        ]
        assert set(read) <= set(field_names())


def test_a_pool_drafts_for_the_servers_that_name_it(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(of_kind(objects, "ConfigMap")["demo-standard"]["data"]["prolepsis.yaml"])
    terms = load_settings({}, {}, tmp_path / "config.yaml").engine.remote_proposer
    assert terms is not None
    host, _, port = str(terms.address).partition(":")
    service = of_kind(objects, "Service")[host]
    container = server_container(of_kind(objects, "Deployment")[host]["spec"]["template"]["spec"])
    assert [entry["port"] for entry in service["spec"]["ports"]] == [int(port)]
    assert [entry["containerPort"] for entry in container["ports"]] == [int(port)]
    [policy] = of_kind(objects, "NetworkPolicy").values()
    opened = [rule for rule in policy["spec"]["ingress"] if rule["ports"] == [{"port": "propose"}]]
    assert [peer["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] for peer in opened[0]["from"]] == ["demo"]


def test_a_pass_has_the_threads_that_the_pool_was_promised(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    threads = {}
    for name, config in of_kind(objects, "ConfigMap").items():
        (tmp_path / name).write_text(config["data"]["prolepsis.yaml"])
        threads[name] = load_settings({}, {}, tmp_path / name).engine.threads
    assert threads == {"demo-standard": 4, "demo-gpu": None, "demo-drafts": 2}


def test_the_default_pool_has_guaranteed_quality_of_service() -> None:
    [deployment] = of_kind(rendered({}), "Deployment").values()
    spec = deployment["spec"]["template"]["spec"]
    for container in [*spec["initContainers"], *spec["containers"]]:
        limits = container["resources"]["limits"]
        assert {"cpu", "memory"} <= set(limits)
        assert container["resources"].get("requests", limits) == limits


def test_names_lead_to_the_services_of_their_pools(objects: list[dict[str, Any]]) -> None:
    [ingress] = of_kind(objects, "Ingress").values()
    led = {rule["host"]: rule["http"]["paths"][0]["backend"]["service"]["name"] for rule in ingress["spec"]["rules"]}
    routed = {
        route["spec"]["hostnames"][0]: route["spec"]["rules"][0]["backendRefs"][0]["name"]
        for route in of_kind(objects, "HTTPRoute").values()
    }
    assert led == routed == {"llm.example.org": "demo-standard", "*.gpu.example.org": "demo-gpu"}
    assert set(led.values()) < set(of_kind(objects, "Service"))


def test_the_operator_scrapes_the_job_of_the_rules_and_has_all_of_them(objects: list[dict[str, Any]]) -> None:
    [monitor] = of_kind(objects, "ServiceMonitor").values()
    services = of_kind(objects, "Service").values()
    ports = {entry["name"] for one in services for entry in one["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} < ports
    assert {one["metadata"]["labels"][monitor["spec"]["jobLabel"]] for one in services} == {"prolepsis"}
    rules = of_kind(objects, "PrometheusRule")
    assert {name: rule["spec"] for name, rule in rules.items()} == {
        f"demo-{file.stem}": read_yaml(file) for file in RULES.glob("*.yaml")
    }


def test_a_pool_that_scales_asks_for_the_age_of_its_own_queue(objects: list[dict[str, Any]]) -> None:
    [scaled] = of_kind(objects, "ScaledObject").values()
    [trigger] = scaled["spec"]["triggers"]
    promql_parser.parse(trigger["metadata"]["query"])
    assert re.findall(r"prolepsis_\w+", trigger["metadata"]["query"]) == ["prolepsis_admission_queue_age_seconds"]
    assert float(trigger["metadata"]["threshold"]) < ServerConfig().shed_after_s[0]
    assert "replicas" not in of_kind(objects, "Deployment")["demo-standard"]["spec"]


def test_without_keda_an_adapter_or_the_use_of_cpu_decides(objects: list[dict[str, Any]]) -> None:
    scalers = of_kind(objects, "HorizontalPodAutoscaler")
    [queue] = scalers["demo-gpu"]["spec"]["metrics"]
    [trigger] = of_kind(objects, "ScaledObject")["demo-standard"]["spec"]["triggers"]
    assert queue["pods"]["metric"]["name"] in trigger["metadata"]["query"]
    assert queue["pods"]["target"]["averageValue"] == trigger["metadata"]["threshold"]
    [cpu] = scalers["demo-drafts"]["spec"]["metrics"]
    assert cpu["resource"]["name"] == "cpu"
    for name in scalers:
        assert "replicas" not in of_kind(objects, "Deployment")[name]["spec"]


def test_an_open_network_is_a_choice() -> None:
    kinds = {one["kind"] for one in rendered({"networkPolicy": {"enabled": False}})}
    assert "NetworkPolicy" not in kinds
