"""Who may import what: the layers that keep the contract light and the agent loop pure."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
ROOTS = {"rollq": REPO / "producer" / "rollq", "rollq_worker": REPO / "worker" / "rollq_worker"}

PURE = {
    "rollq.errors",
    "rollq.sampling",
    "rollq.job",
    "rollq.trajectory",
    "rollq.group",
    "rollq.batch",
    "rollq.token_stats",
}
"""Values only: standard library and each other."""

LOOP = {
    "rollq_worker.episode.loop",
    "rollq_worker.episode.messages",
    "rollq_worker.episode.sampler",
    "rollq_worker.episode.tool_schemas",
    "rollq_worker.episode.strategies",
    "rollq_worker.protocols",
    "rollq_worker.failures",
    "rollq_worker.episode.token_checks",
    "rollq_worker.episode.resume",
}
"""The agent loop: values, each other and the standard library."""

OWNERS = {
    "transformers": {"rollq_worker.tokens.chat_template"},
    "tokenizers": {
        "rollq_worker.tokens.tokenizer",
        "rollq_worker.tokens.chat_template",
        "rollq_worker.tokens.bundled.train_tokenizer",
    },
    "tiktoken": {"rollq_worker.tokens.tiktoken_encoder"},
    "orjson": {"rollq_worker.engine.reply"},
    "tau_bench": {"rollq_worker.environments.tau_bench"},
    "inspect_evals": {"rollq_worker.environments.tau2"},
    "inspect_ai": {"rollq_worker.environments.tau2"},
    "celery": {"rollq_worker.process.celery_app", "rollq.client.celery_publisher"},
    "kombu": {
        "rollq_worker.process.celery_app",
        "rollq_worker.process.kombu_transport",
        "rollq.client.celery_publisher",
    },
    "requests": {"rollq_worker.engine.sglang_client", "rollq_worker.audit.scorer", "rollq_worker.users.openai"},
}
"""Heavy library -> prefixes of the modules that may import it."""


def modules() -> dict[str, Path]:
    found = {}
    for name, root in ROOTS.items():
        for path in root.rglob("*.py"):
            dotted = ".".join([name, *path.relative_to(root).with_suffix("").parts])
            found[dotted.removesuffix(".__init__")] = path
    return found


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_the_contract_never_imports_the_worker_at_load():
    for name in modules():
        if name.startswith("rollq.") or name == "rollq":
            top = [n for n in ast.parse(modules()[name].read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)]
            for node in top:
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not [n for n in names if n.split(".")[0] == "rollq_worker"], name


@pytest.mark.parametrize("name", sorted(PURE))
def test_values_are_pure(name):
    for imported in imports(modules()[name]):
        assert imported in PURE or imported.split(".")[0] in sys.stdlib_module_names, f"{name} imports {imported}"


@pytest.mark.parametrize("name", sorted(LOOP))
def test_the_agent_loop_sees_values_and_protocols(name):
    for imported in imports(modules()[name]):
        known = imported in PURE | LOOP or imported.split(".")[0] in sys.stdlib_module_names
        assert known, f"{name} imports {imported}"


@pytest.mark.parametrize("library", sorted(OWNERS))
def test_heavy_libraries_have_one_owner(library):
    for name, path in modules().items():
        if library in {imported.split(".")[0] for imported in imports(path)}:
            assert any(name.startswith(owner) for owner in OWNERS[library]), f"{name} imports {library}"


def test_the_light_client_loads_nothing_heavy():
    heavy = "celery kombu rollq_worker requests numpy transformers tokenizers rich".split()
    code = f"import sys, rollq; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
