"""The manifests: built by kustomize and checked against the schemas of Kubernetes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is not installed"
)

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSION = "1.31"


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    kubectl = shutil.which("kubectl") or shutil.which("kustomize")
    if kubectl is None:
        pytest.skip("neither kubectl nor kustomize is installed")
    folder = tmp_path_factory.mktemp("kubernetes") / "k"
    shutil.copytree(FOLDER, folder)
    for example in folder.glob("*.env.example"):
        example.rename(example.with_suffix(""))
    verb = "kustomize" if kubectl.endswith("kubectl") else "build"
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    answer = subprocess.run(
        [kubectl, verb, str(folder)], capture_output=True, text=True, check=False, env=environment
    )
    assert answer.returncode == 0, answer.stderr
    return list(yaml.safe_load_all(answer.stdout))


def of_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {m["metadata"]["name"]: m for m in manifests if m["kind"] == kind}


def pods(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: found["spec"]["template"]["spec"]
        for name, found in of_kind(manifests, "Deployment").items()
    }


def test_every_manifest_fits_its_schema(manifests: list[dict[str, Any]]) -> None:
    assert len(manifests) >= 10
    for manifest in manifests:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_the_schemas_find_a_misspelt_field(manifests: list[dict[str, Any]]) -> None:
    broken = {**of_kind(manifests, "Deployment")["gateway"]}
    broken["spec"] = {**broken["spec"], "replica": 2}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


def test_pods_meet_the_restricted_profile(manifests: list[dict[str, Any]]) -> None:
    for pod in pods(manifests).values():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_prometheus_can_ask_the_gateways_and_the_adapter_finds_its_series(
    manifests: list[dict[str, Any]], tmp_path: Path
) -> None:
    (job,) = yaml.safe_load((FOLDER / "prometheus-scrape.yaml").read_text())
    gateway = of_kind(manifests, "Deployment")["gateway"]
    rules = {rule["source_labels"][0]: rule for rule in job["relabel_configs"]}
    kept = rules["__meta_kubernetes_pod_label_app_kubernetes_io_name"]["regex"]
    assert gateway["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == kept
    (port,) = gateway["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert rules["__meta_kubernetes_pod_container_port_name"]["regex"] == port["name"]
    assert job["kubernetes_sd_configs"][0]["namespaces"]["names"] == list(
        of_kind(manifests, "Namespace")
    )
    (adapter,) = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())["rules"][
        "external"
    ]
    (label,) = adapter["resources"]["overrides"]
    assert rules["__meta_kubernetes_namespace"]["target_label"] == label
    # /metrics asks for a key, because the gateway listens beyond the loopback interface.
    assert "LACUNA_API_KEYS" in (FOLDER / "gateway.env.example").read_text()
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    (tmp_path / "key").write_text("key")
    job["authorization"]["credentials_file"] = str(tmp_path / "key")
    # Distributions build it without the discovery of pods.
    del job["kubernetes_sd_configs"]
    job["static_configs"] = [{"targets": ["127.0.0.1:8080"]}]
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    answer = subprocess.run([promtool, "check", "config", config], capture_output=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_a_worker_is_not_killed_within_its_grace(manifests: list[dict[str, Any]]) -> None:
    (settings,) = of_kind(manifests, "ConfigMap").values()
    grace = float(settings["data"]["LACUNA_GRACE_SECONDS"])
    assert grace < float(settings["data"]["LACUNA_LEASE_SECONDS"])
    assert pods(manifests)["worker-gpu"]["terminationGracePeriodSeconds"] >= grace + 10


def test_open_waits_end_before_a_gateway_is_killed(manifests: list[dict[str, Any]]) -> None:
    longest = Settings.model_fields["max_wait_seconds"].default
    assert pods(manifests)["gateway"]["terminationGracePeriodSeconds"] >= longest + 5


def test_only_workers_know_the_hub_token_and_only_gateways_the_keys(
    manifests: list[dict[str, Any]],
) -> None:
    read = {
        name: {
            source["secretRef"]["name"].rpartition("-")[0]
            for source in pod["containers"][0]["envFrom"]
            if "secretRef" in source
        }
        for name, pod in pods(manifests).items()
    }
    assert read == {
        "gateway": {"lacuna-store", "lacuna-gateway"},
        "worker-gpu": {"lacuna-store", "lacuna-worker"},
    }


def test_settings_are_ones_that_exist(manifests: list[dict[str, Any]]) -> None:
    known = {f"LACUNA_{name.upper()}" for name in Settings.model_fields}
    given: set[str] = set()
    for kind in ("ConfigMap", "Secret"):
        for manifest in of_kind(manifests, kind).values():
            given |= set(manifest["data"])
    for pod in pods(manifests).values():
        given |= {item["name"] for item in pod["containers"][0].get("env", [])}
    assert given <= known


def test_the_autoscaler_follows_the_backlog_of_the_gpu_queue(
    manifests: list[dict[str, Any]],
) -> None:
    (scaler,) = of_kind(manifests, "HorizontalPodAutoscaler").values()
    metric = scaler["spec"]["metrics"][0]["external"]["metric"]
    adapter = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())
    assert metric["name"] == adapter["rules"]["external"][0]["name"]["as"]
    assert metric["selector"] == {"matchLabels": {"queue": "gpu"}}
    target = scaler["spec"]["scaleTargetRef"]["name"]
    # A number of replicas in the manifest would undo the autoscaler at every apply.
    assert "replicas" not in of_kind(manifests, "Deployment")[target]["spec"]


def test_policies_select_the_pods_that_exist(manifests: list[dict[str, Any]]) -> None:
    policies = of_kind(manifests, "NetworkPolicy")
    labels = {
        name: found["spec"]["template"]["metadata"]["labels"]
        for name, found in of_kind(manifests, "Deployment").items()
    }
    for policy, deployment in (("gateway", "gateway"), ("worker", "worker-gpu")):
        wanted = policies[policy]["spec"]["podSelector"]["matchLabels"]
        assert wanted.items() <= labels[deployment].items()
    assert policies["worker"]["spec"].get("ingress", []) == []
    assert policies["deny"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
