"""The manifest for KubeRay: its application exists and takes its arguments, and its pods are what Kubernetes knows."""

import importlib
import tomllib
from typing import Any

import pytest
import yaml

from prolepsis.adapters.ray.arguments import ServeArguments
from tests.deploy.written import DEPLOY, image_variables, read_yaml
from tests.paths import ROOT

SPEC: dict[str, Any] = read_yaml(DEPLOY / "kuberay" / "rayservice.yaml")["spec"]
[APPLICATION] = yaml.safe_load(SPEC["serveConfigV2"])["applications"]
ARGUMENTS = ServeArguments.model_validate(APPLICATION["args"])
CLUSTER = SPEC["rayClusterConfig"]
PODS = [CLUSTER["headGroupSpec"]["template"], *(group["template"] for group in CLUSTER["workerGroupSpecs"])]


def test_the_application_exists() -> None:
    module, _, name = APPLICATION["import_path"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_front_ends_that_are_several_share_a_store() -> None:
    [model] = ARGUMENTS.served
    assert ARGUMENTS.front_ends > 1
    assert model.server.store.startswith("postgresql://")
    assert model.scaling.least > 1, "one replica would leave none while it is replaced"


def test_the_workers_have_the_cpus_of_all_engines() -> None:
    [model] = ARGUMENTS.served
    assert CLUSTER["enableInTreeAutoscaling"] is False
    groups = CLUSTER["workerGroupSpecs"]
    places = sum(g["replicas"] * (int(g["rayStartParams"]["num-cpus"]) // (model.engine.threads or 1)) for g in groups)
    assert model.scaling.most <= places


def test_rays_version_is_the_one_that_is_pinned() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [pinned] = [one.partition("==")[2].removesuffix("*") for one in extras["ray"] if one.startswith("ray[serve]==")]
    assert CLUSTER["rayVersion"].startswith(pinned)


@pytest.mark.parametrize("template", PODS, ids=["head", "workers"])
def test_kubernetes_knows_the_pods(template: dict[str, Any]) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate: pip install --group deploy")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}
    schemas.validate(pod, "1.30", strict=True)


@pytest.mark.parametrize("template", PODS, ids=["head", "workers"])
def test_a_pod_has_what_the_settings_name_and_time_to_drain(template: dict[str, Any]) -> None:
    spec = template["spec"]
    [container] = spec["containers"]
    mounted = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounted.values()} == {volume["name"] for volume in spec["volumes"]}
    variables = image_variables()
    assert {variables["PROLEPSIS_DATA"], variables["PROLEPSIS_CACHE"]} < set(mounted)
    [model] = ARGUMENTS.served
    assert str(model.server.keys_file and model.server.keys_file.parent) in mounted
    assert str(model.server.audit_key and model.server.audit_key.parent) in mounted
    assert spec["terminationGracePeriodSeconds"] >= ARGUMENTS.drain_s + 15
    assert spec["securityContext"]["runAsNonRoot"] is True
