"""The domains of tau2_2025: tasks, tools, policy and version are those of the package."""

import importlib
import json
import subprocess
import sys
from importlib import metadata

import pytest

from rollq.env import STOP_MARKER
from rollq.errors import JobFailure
from rollq_integrations.tau import tau2_2025
from tests.rollq_worker.environments.episodes import calls_of

pytestmark = [pytest.mark.packages, pytest.mark.filterwarnings("ignore::UserWarning:pydantic")]


def test_the_splits_are_the_package_s(tau2_domain, original, variant):
    sizes = {
        "retail": {"train": 74, "test": 40, "base": 114},
        "airline": {"train": 30, "test": 20, "base": 50},
    }
    assert tau2_domain.splits() == sizes[variant]
    samples = original.read_dataset("x")
    assert [tau2_domain.task("base", i).id for i in range(len(samples))] == [
        str(s.id) for s in samples
    ]
    train, test, base = (
        {tau2_domain.task(s, i).hash for i in range(n)} for s, n in tau2_domain.splits().items()
    )
    assert (train | test, train & test) == (base, set())


def test_the_tasks_are_the_package_s(tau2_domain, original):
    for index, sample in enumerate(original.read_dataset("x")):
        task, theirs = tau2_domain.task("base", index), sample.metadata["task"]
        assert task.instruction in sample.input[0].content
        assert list(task.outputs) == (theirs["evaluation_criteria"]["communicate_info"] or [])
        calls = [(a["name"], a["arguments"]) for a in theirs["evaluation_criteria"]["actions"]]
        assert [(call.name, call.arguments) for call in calls_of(task)] == calls
        # No task asks for what the adapter does not support.
        assert theirs["initial_state"] is None
        assert {*theirs["evaluation_criteria"]["reward_basis"]} <= {"DB", "COMMUNICATE"}


def test_openings_are_unique_and_speak_of_oneself(tau2_domain):
    tasks = [tau2_domain.task(s, i) for s, n in tau2_domain.splits().items() for i in range(n)]
    assert (
        len({t.opening for t in tasks})
        == len({t.hash for t in tasks})
        == tau2_domain.splits()["base"]
    )
    assert all(len(t.replies) >= 3 and STOP_MARKER in t.replies[-1] for t in tasks)
    assert not any(STOP_MARKER in text for t in tasks for text in (t.opening, *t.replies[:-1]))
    assert sum(t.opening.startswith(("I", "My")) for t in tasks) > len(tasks) / 2


def test_the_tools_are_the_package_s(tau2_domain, original, variant):
    define = importlib.import_module("inspect_ai.tool").ToolDef
    theirs = {t.name: t for t in (define(tool()) for tool in original.tools)}
    ours = {t["function"]["name"]: t["function"] for t in tau2_domain.open("test", 0, {}).tools}
    assert ours.keys() == theirs.keys()
    assert len(ours) == {"retail": 15, "airline": 14}[variant]
    for name, tool in ours.items():
        assert tool["description"] == theirs[name].description
        assert json.loads(json.dumps(tool["parameters"])) == theirs[name].parameters.model_dump(
            exclude_none=True
        )
        assert all(p.get("description") for p in tool["parameters"]["properties"].values())


def test_the_policy_is_the_package_s(tau2_domain, original):
    policy = tau2_domain.open("test", 0, {}).system_prompt
    assert policy in original.policy
    assert len(policy) > 1000


@pytest.mark.parametrize("variant", [None, "telecom"])
def test_another_variant_is_refused(variant):
    with pytest.raises(JobFailure, match="retail and airline"):
        tau2_2025.load(variant)


def test_the_version_names_package_and_data(tau2_domain):
    assert tau2_domain.version.startswith(
        f"inspect_evals {metadata.version('inspect_evals')} data "
    )
    assert len(tau2_domain.version.split()[-1]) == 12


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(tau2_2025.metadata, "version", missing)
    with pytest.raises(
        JobFailure, match=r"needs the package inspect_evals: pip install .*\[tau2-2025\]'"
    ):
        tau2_2025.load("retail")


@pytest.mark.parametrize("version", ["0.25.3", "0.260", "0.27.0", "1.0"])
def test_another_version_of_the_package_is_refused(monkeypatch, version):
    monkeypatch.setattr(tau2_2025.metadata, "version", lambda name: version)
    with pytest.raises(
        JobFailure,
        match=rf"needs inspect_evals 0\.26\.\*, not {version}: pip install .*\[tau2-2025\]'",
    ):
        tau2_2025.load("retail")


def test_a_broken_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_evals.tau2.utils", None)
    with pytest.raises(JobFailure, match=r"cannot import .* pip install .*\[tau2-2025\]'"):
        tau2_2025.load("retail")


def test_a_package_is_imported_when_a_domain_is_loaded_and_not_before():
    code = (
        "import sys; from rollq_integrations.tau import tau2_2025, tau_bench;"
        "from rollq_worker.environments import domain, names; names();"
        "heavy = {'inspect_ai', 'inspect_evals', 'pydantic', 'tau_bench', 'litellm'};"
        "assert not heavy & set(sys.modules), sys.modules;"
        "domain('tau2_2025:retail'); assert 'inspect_evals' in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
