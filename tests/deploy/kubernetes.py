"""The objects of deploy/k8s, as the kustomize in kubectl renders them. kubectl comes from the
package index.
"""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import REPO

FOLDER = REPO / "deploy" / "k8s"
FOLDERS = ("base", "autoscaling", "demo")
KUBECTL = str(Path(sys.executable).parent / "kubectl")
NAME = "app.kubernetes.io/name"
Object = dict[str, Any]


@cache
def rendered(folder: str) -> tuple[Object, ...]:
    """What `kubectl apply -k` would send."""
    said = subprocess.run(
        [KUBECTL, "kustomize", str(FOLDER / folder)], capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0, said.stderr
    return tuple(yaml.load_all(said.stdout, yaml.CSafeLoader))


def objects(kind: str) -> list[Object]:
    """All of that kind, each once."""
    found = [one for folder in FOLDERS for one in rendered(folder) if one["kind"] == kind]
    return list({one["metadata"]["name"]: one for one in found}.values())


def config(name: str) -> Object:
    """The data of the ConfigMap whose name begins so."""
    (found,) = [
        one["data"] for one in objects("ConfigMap") if one["metadata"]["name"].startswith(name)
    ]
    return dict(found)


def workloads() -> dict[str, Object]:
    """Whatever makes pods, by its name."""
    kinds = ("Deployment", "StatefulSet", "Job")
    return {one["metadata"]["name"]: one for kind in kinds for one in objects(kind)}


def pod(name: str) -> Object:
    """The spec of a workload's pods."""
    spec: Object = workloads()[name]["spec"]["template"]["spec"]
    return spec


def container(name: str) -> Object:
    """The one container of a workload's pods."""
    (found,) = pod(name)["containers"]
    return dict(found)


def labels(name: str) -> dict[str, str]:
    found: dict[str, str] = workloads()[name]["spec"]["template"]["metadata"]["labels"]
    return found


def selected(selector: Object) -> set[str]:
    """The workloads whose pods a selector of labels matches."""
    found = set()
    for name in workloads():
        has = labels(name)
        equal = all(has.get(key) == value for key, value in selector.get("matchLabels", {}).items())
        terms = selector.get("matchExpressions", [])
        assert all(term["operator"] == "In" for term in terms)
        if equal and all(has.get(term["key"]) in term["values"] for term in terms):
            found.add(name)
    return found


def named(selector: Object) -> set[str]:
    """The workloads that a selector names."""
    values = [value for term in selector.get("matchExpressions", []) for value in term["values"]]
    return {*values, *selector.get("matchLabels", {}).values()}


def ports(name: str) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(name).get("ports", [])}
