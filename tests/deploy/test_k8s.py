"""deploy/k8s: valid for Kubernetes, true to docker-compose.yml, and no object names another that is
not there.
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollq import __version__
from rollq.metrics.of_runs import LEDGER_METRICS
from rollq_worker.process.shutdown import EXIT_AFTER_S
from tests.conftest import REPO
from tests.deploy.compose_file import FILE, ONCE, SERVICES, filled
from tests.deploy.kubernetes import (
    FOLDER,
    FOLDERS,
    KUBECTL,
    NAME,
    Object,
    config,
    container,
    labels,
    named,
    objects,
    pod,
    ports,
    rendered,
    selected,
    workloads,
)
from tests.deploy.monitoring import selectors

pytestmark = pytest.mark.packages

OF_KEDA = ("ScaledObject",)
NAMES = sorted(workloads()) if Path(KUBECTL).exists() else []  # else the first test says so
OURS = [name for name in NAMES if container(name)["image"].startswith("rollq-")]


class TestObjects:
    @pytest.mark.parametrize("version", ["1.27", "1.37"])
    @pytest.mark.parametrize("folder", FOLDERS)
    def test_they_are_valid(self, folder: str, version: str) -> None:
        import kubernetes_validate

        for one in rendered(folder):
            if one["kind"] not in OF_KEDA:
                kubernetes_validate.validate(one, version, strict=True)

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_every_file_is_used(self, folder: str) -> None:
        named = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())["resources"]
        files = {path.name for path in (FOLDER / folder).iterdir()} - {"kustomization.yaml"}
        assert files == {name for name in named if name.endswith(".yaml")}

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_all_are_in_one_namespace(self, folder: str) -> None:
        (namespace,) = [
            one["metadata"]["name"] for one in rendered(folder) if one["kind"] == "Namespace"
        ]
        assert {
            one["metadata"]["namespace"] for one in rendered(folder) if one["kind"] != "Namespace"
        } == {namespace}


class TestReferences:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_workload_selects_its_own_pods(self, name: str) -> None:
        assert labels(name)[NAME] == name
        if "selector" in workloads()[name]["spec"]:
            assert selected(workloads()[name]["spec"]["selector"]) == {name}
        for term in pod(name).get("affinity", {}).get("podAntiAffinity", {}).values():
            assert [selected(one["podAffinityTerm"]["labelSelector"]) for one in term] == [{name}]

    def test_services_lead_to_ports_of_pods(self) -> None:
        services = {one["metadata"]["name"]: one["spec"] for one in objects("Service")}
        for name, spec in services.items():
            assert selected({"matchLabels": spec["selector"]}) == {name}
            assert [(ports(name)[port["targetPort"]]) for port in spec["ports"]] == [
                port["port"] for port in spec["ports"]
            ]
        assert objects("StatefulSet")[0]["spec"]["serviceName"] in services

    def test_policies_and_budgets_select_pods_that_there_are(self) -> None:
        (budget,) = objects("PodDisruptionBudget")
        assert selected(budget["spec"]["selector"]) == {"worker"}
        for policy in objects("NetworkPolicy"):
            pods = selected(policy["spec"]["podSelector"])
            assert pods
            for rule in policy["spec"].get("ingress", []):
                assert all(port["port"] in ports(name) for port in rule["ports"] for name in pods)
                for peer in rule["from"]:
                    assert "namespaceSelector" in peer or selected(peer["podSelector"]) == named(
                        peer["podSelector"]
                    )

    @pytest.mark.parametrize("name", NAMES)
    def test_volumes_are_there(self, name: str) -> None:
        claims = {claim["metadata"]["name"] for claim in objects("PersistentVolumeClaim")}
        maps = {one["metadata"]["name"] for one in objects("ConfigMap")}
        own = {
            claim["metadata"]["name"]
            for claim in workloads()[name]["spec"].get("volumeClaimTemplates", [])
        }
        volumes = {volume["name"]: volume for volume in pod(name).get("volumes", [])}
        assert {
            mount["name"] for mount in container(name).get("volumeMounts", [])
        } == volumes.keys() | own
        for volume in volumes.values():
            assert volume.get("secret", {}).get("secretName") in {None, *FILE["secrets"]}
            assert volume.get("configMap", {}).get("name") in {None, *maps}
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}
        for source in container(name).get("envFrom", []):
            assert source["configMapRef"]["name"] in maps

    @pytest.mark.parametrize("name", NAMES)
    def test_secrets_are_files_where_the_settings_look(self, name: str) -> None:
        """No password is in an object: a pod mounts the secret of its own user of Redis."""
        env = {variable["name"]: variable["value"] for variable in container(name).get("env", [])}
        assert env.get("ROLLQ_REDIS_URL_FILE") == SERVICES[name].get("environment", {}).get(
            "ROLLQ_REDIS_URL_FILE"
        )
        mounted = [
            f"{mount['mountPath']}/{volume['secret']['secretName']}"
            for volume in pod(name).get("volumes", [])
            for mount in container(name)["volumeMounts"]
            if mount["name"] == volume["name"] and "secret" in volume
        ]
        assert mounted == [f"/run/secrets/{secret}" for secret in SERVICES[name].get("secrets", [])]
        assert not objects("Secret")

    def test_only_those_with_a_password_reach_redis(self) -> None:
        (policy,) = [one for one in objects("NetworkPolicy") if one["metadata"]["name"] == "redis"]
        (rule,) = policy["spec"]["ingress"]
        (peer,) = rule["from"]
        with_address = {
            name for name in NAMES if "ROLLQ_REDIS_URL_FILE" in str(container(name).get("env"))
        }
        assert (
            selected(peer["podSelector"])
            == with_address
            == {"worker", "metrics", "producer", "trainer"}
        )


class TestLikeCompose:
    @pytest.mark.parametrize("name", NAMES)
    def test_commands(self, name: str) -> None:
        said = SERVICES[name]["command"]
        env = {"ROLLQ_REDIS_MAXMEMORY": "2gb"}
        expected = (
            filled(said, env).split()
            if isinstance(said, str)
            else [filled(word, env) for word in said]
        )
        args = container(name)["args"]
        if name == "prometheus":  # KEDA needs no history
            expected, args = expected[:2], args[:2]
        assert args == expected

    @pytest.mark.parametrize("name", NAMES)
    def test_images(self, name: str) -> None:
        build = SERVICES[name].get("build")
        expected = (
            f"rollq-{build['target']}:{__version__}"
            if build
            else filled(SERVICES[name]["image"], {})
        )
        assert container(name)["image"] == expected

    def test_settings_of_workers(self) -> None:
        settings = config("worker-")
        known = SERVICES["worker"]["environment"]
        assert settings == {name: filled(known[name], {}) for name in settings}
        env = {variable["name"]: variable["value"] for variable in container("worker")["env"]}
        assert env == {name: known[name] for name in env}

    def test_redis_has_memory_to_rewrite_its_file(self) -> None:
        args = container("redis")["args"]
        limit = container("redis")["resources"]["limits"]["memory"]
        assert int(limit.removesuffix("Gi")) >= 2 * int(
            args[args.index("--maxmemory") + 1].removesuffix("gb")
        )


class TestPods:
    @pytest.mark.parametrize("name", NAMES)
    def test_are_confined(self, name: str) -> None:
        """As the namespace demands: what Kubernetes calls the restricted standard, on a read-only
        file system.
        """
        context, inner = pod(name)["securityContext"], container(name)["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert inner == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod(name)["automountServiceAccountToken"] is False
        assert (
            pod(name)["enableServiceLinks"] is False
        )  # their variables, such as REDIS_PORT, are not asked for
        assert (
            container(name)["resources"]["limits"]["memory"]
            and container(name)["resources"]["requests"]["cpu"]
        )

    @pytest.mark.parametrize("name", OURS)
    def test_run_as_the_user_of_the_image(self, name: str) -> None:
        (user,) = re.findall(
            r"^USER (\d+)$", (REPO / "deploy/Dockerfile").read_text(), re.MULTILINE
        )
        assert pod(name)["securityContext"]["runAsUser"] == int(user)

    @pytest.mark.parametrize("name", NAMES)
    def test_say_how_they_are(self, name: str) -> None:
        assert ("readinessProbe" in container(name)) is (name not in ONCE)

    def test_a_worker_has_time_to_stop(self) -> None:
        assert pod("worker")["terminationGracePeriodSeconds"] >= 2 * EXIT_AFTER_S
        assert pod("redis")["terminationGracePeriodSeconds"] == 60

    @pytest.mark.parametrize(
        ("age_s", "answers"),
        [(0, (True, True)), (60, (False, True)), (700, (False, False)), (None, (False, False))],
    )
    def test_a_worker_is_as_alive_as_its_file(
        self, tmp_path: Path, age_s: float | None, answers: tuple[bool, bool]
    ) -> None:
        """Ready while it reaches Redis; alive for ten minutes longer, because no restart brings
        Redis back.
        """
        file = tmp_path / "alive"
        if age_s is not None:
            file.touch()
            os.utime(file, (time.time() - age_s,) * 2)
        worker = container("worker")

        def passes(probe: Object) -> bool:
            command = [
                word.replace("/tmp/rollq-alive", str(file)) for word in probe["exec"]["command"]
            ]
            return subprocess.run(command).returncode == 0

        assert (passes(worker["readinessProbe"]), passes(worker["livenessProbe"])) == answers
        assert worker["startupProbe"]["exec"] == worker["readinessProbe"]["exec"]

    def test_probes_are_those_of_compose(self) -> None:
        for name in ("worker", "redis"):
            kind, command = SERVICES[name]["healthcheck"]["test"]
            assert kind == "CMD-SHELL"
            assert container(name)["readinessProbe"]["exec"]["command"] == [
                "sh",
                "-c",
                command.replace("$$", "$"),
            ]


class TestScaling:
    """KEDA's part. Its schema is in no package, so what the file says is checked here, after KEDA
    2.20's own.
    """

    @pytest.fixture
    def spec(self) -> Any:
        (one,) = objects("ScaledObject")
        assert one["apiVersion"] == "keda.sh/v1alpha1"
        return one["spec"]

    def test_it_scales_the_workers(self, spec: Any) -> None:
        assert spec.keys() == {
            "scaleTargetRef",
            "minReplicaCount",
            "maxReplicaCount",
            "pollingInterval",
            "triggers",
        }
        assert spec["scaleTargetRef"] == {"kind": "Deployment", "name": "worker"}
        assert 0 < spec["minReplicaCount"] < spec["maxReplicaCount"]
        (deployment,) = [
            one
            for one in rendered("autoscaling")
            if (one["kind"], one["metadata"]["name"]) == ("Deployment", "worker")
        ]
        assert "replicas" not in deployment["spec"], "each `kubectl apply` would set it back"

    def test_it_asks_our_prometheus_for_metrics_that_there_are(self, spec: Any) -> None:
        (trigger,) = spec["triggers"]
        assert trigger.keys() == {"type", "metadata"} and trigger["type"] == "prometheus"
        asked = trigger["metadata"]
        assert asked.keys() == {"serverAddress", "query", "threshold", "ignoreNullValues"}
        assert all(isinstance(value, str) for value in asked.values())
        names = {metric.name for metric in LEDGER_METRICS}
        assert {name for name, _ in selectors(asked["query"])} <= names
        assert (
            asked["serverAddress"] == f"http://prometheus.rollq.svc:{ports('prometheus')['http']}"
        )

    def test_a_worker_has_as_many_jobs_as_it_plays_at_once(self, spec: Any) -> None:
        settings = config("worker-")
        slots = int(settings["ROLLQ_CONCURRENCY"]) * int(settings["ROLLQ_PROCESSES"])
        assert int(spec["triggers"][0]["metadata"]["threshold"]) == slots

    def test_prometheus_finds_its_targets_by_the_names_of_services(self) -> None:
        files = config("prometheus-")
        assert files.keys() == {"prometheus.yml", "alerts.yml"}
        ledger, worker = yaml.safe_load(files["prometheus.yml"])["scrape_configs"]
        assert ledger["static_configs"] == [{"targets": [f"metrics:{ports('metrics')['metrics']}"]}]
        (found,) = worker["dns_sd_configs"]
        assert (found["names"], found["port"]) == (["worker"], ports("worker")["metrics"])
        (headless,) = [
            one["spec"] for one in objects("Service") if one["metadata"]["name"] == "worker"
        ]
        assert headless["clusterIP"] == "None"  # so that the name has the addresses of all workers


def test_the_secrets_are_made_as_the_page_says(tmp_path: Path) -> None:
    shutil.copytree(REPO / "deploy", tmp_path / "deploy")
    shutil.copy(REPO / ".env.example", tmp_path)
    page = (REPO / "docs/deploy.md").read_text()
    (loop,) = re.findall(
        r"^deploy/secrets\.sh.*\n(for name in .*\n(?:.*\n)*?done)$", page, re.MULTILINE
    )
    script = "deploy/secrets.sh >/dev/null\n" + loop.replace("| kubectl apply -f -", "; echo ---")
    env = {**os.environ, "PATH": f"{Path(KUBECTL).parent}:{os.environ['PATH']}"}
    said = subprocess.run(
        ["sh", "-ec", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    made = {
        one["metadata"]["name"]: {*one["data"]} for one in yaml.safe_load_all(said.stdout) if one
    }
    used = {
        volume["secret"]["secretName"]
        for name in NAMES
        for volume in pod(name).get("volumes", [])
        if "secret" in volume
    }
    assert made == {name: {name} for name in used}, said.stderr


def test_a_kustomization_of_ones_own_is_as_the_page_says(tmp_path: Path) -> None:
    page = (REPO / "docs/deploy.md").read_text()
    (text,) = re.findall(
        r"^```yaml\n(resources: \[\.\./rollq/deploy/k8s/.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(
        text.replace("http://engine:30000", "http://mine:30000")
    )
    shutil.copytree(REPO / "deploy", tmp_path / "rollq" / "deploy")
    said = subprocess.run(
        [KUBECTL, "kustomize", str(tmp_path / "mine")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    made = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(said.stdout)}
    (settings,) = [name for kind, name in made if kind == "ConfigMap"]
    assert made["ConfigMap", settings]["data"]["ROLLQ_ENGINE_URL"] == "http://mine:30000"
    (worker,) = made["Deployment", "worker"]["spec"]["template"]["spec"]["containers"]
    assert worker["image"].startswith("REGISTRY/rollq-worker:")
    assert worker["envFrom"] == [{"configMapRef": {"name": settings}}]
