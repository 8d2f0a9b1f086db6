"""Sierra's original tau-bench, retail and airline, with the tools, tasks and data of the package
`tau_bench`.

The tools run unchanged, on views of one shared database. An episode earns what the package's `Env`
gives it. The `Env` itself is not used: it loads and hashes the whole database for every episode,
and writes to its own state when it scores. A tool's expression or a strange argument could also
stop the process. The package is imported when a domain is loaded.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module, metadata
from types import ModuleType
from typing import Any

from rollq.env import STOP_MARKER, Action, Json
from rollq.env.copy_on_write import SharedDatabase, View
from rollq.env.customer_service import Case, ConversationDomain
from rollq.env.foreign_tools import (
    check_calculation,
    copy_record,
    untouched,
)
from rollq.errors import JobFailure
from rollq.pip_extras import install_line
from rollq_integrations.tau.backend import PackageBackend, version_with_commit
from rollq_integrations.tau.scripted_tasks import scripted_case

SPLITS: Mapping[str, Sequence[str]] = {"retail": ("train", "test", "dev"), "airline": ("test",)}


def load(variant: str | None) -> ConversationDomain:
    """The entry point. Raises JobFailure for another variant and without the package."""
    if variant is None or variant not in SPLITS:
        raise JobFailure(
            f"environment 'tau_bench' has the variants {' and '.join(SPLITS)}, not {variant!r}"
        )
    get_env, hashable = _import_package()
    # The human user is the package's only one that makes no call to a model. It is never asked.
    envs = {
        split: get_env(
            variant, user_strategy="human", user_model="", task_split=split, task_index=0
        )
        for split in SPLITS[variant]
    }
    backend = TauBenchBackend(next(iter(envs.values())), hashable)
    cases = {
        split: [
            _case(f"{split}/{index}", task, backend.closing_tools)
            for index, task in enumerate(env.tasks)
        ]
        for split, env in envs.items()
    }
    return ConversationDomain(
        f"tau_bench:{variant}", f"{_version()} data {backend.digest}", backend, cases
    )


def _import_package() -> tuple[Any, Any]:
    if importlib.util.find_spec("tau_bench") is None:
        raise JobFailure(
            f"the environment tau_bench needs the package tau_bench: {install_line('tau-bench')}"
        )
    # litellm takes 100 MB and seconds, and fetches a price list. Only the package's user simulators
    # need it, which are not used here.
    stub = "litellm" not in sys.modules
    if stub:
        sys.modules["litellm"] = _litellm()
    try:
        return import_module("tau_bench.envs").get_env, import_module(
            "tau_bench.envs.base"
        ).to_hashable
    except ImportError as e:
        raise JobFailure(
            f"the environment tau_bench cannot import tau_bench ({e}): {install_line('tau-bench')}"
        ) from e
    finally:
        if stub:
            sys.modules.pop("litellm", None)


def _litellm() -> ModuleType:
    def completion(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(
            "tau-bench's own user simulators need litellm, which rollq leaves out"
        )

    module = ModuleType("litellm")
    module.completion = completion  # type: ignore[attr-defined]
    return module


def _version() -> str:
    """The version alone has never changed, so the commit counts."""
    try:
        return version_with_commit("tau_bench", metadata.distribution("tau_bench"))
    except metadata.PackageNotFoundError:  # a clone on the path
        return "tau_bench"


class TauBenchBackend(PackageBackend):
    """Implements customer_service.Backend."""

    stop_markers: Sequence[str] = (STOP_MARKER,)

    def __init__(self, env: Any, hashable: Any) -> None:
        super().__init__(
            SharedDatabase(
                env.data,
                copy=copy_record,
                canon=lambda record: str(hashable(record)),
                untouched=untouched,
            )
        )
        self.tools: Sequence[Json] = env.tools_info
        self.system_prompt: str = env.wiki
        self.closing_tools = frozenset[str](env.terminate_tools)
        self.digest = sha256(json.dumps(env.data).encode()).hexdigest()[:12]
        self._tools: Mapping[str, Any] = env.tools_map

    def invoke(self, view: View, name: str, arguments: dict[str, Json]) -> str:
        if name not in self._tools:
            return f"Unknown action {name}"
        check_calculation(name, arguments)
        # The policy may pass `data` as an argument, which is an error like any other.
        text = self._tools[name].invoke(data=view, **arguments)
        if not isinstance(text, str):
            raise ValueError(f"{name} did nothing")  # send_certificate, the fourth time
        return text


def _case(name: str, task: Any, closing_tools: frozenset[str]) -> Case:
    return scripted_case(
        name,
        task.model_dump(),
        instruction=task.instruction,
        wishes=task.instruction,
        calls=[Action(action.name, action.kwargs) for action in task.actions],
        outputs=task.outputs,
        closing_tools=closing_tools,
    )
