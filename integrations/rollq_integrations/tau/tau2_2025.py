"""tau2-bench as it was in June 2025, retail and airline, with tools, tasks, data and grading of
`inspect_evals`.

Sierra has corrected tasks since; `tau2` has those.

The tools run unchanged, on views of one shared database, and an episode earns what the package's
scorer gives it. Only versions that the tests have compared are accepted. The package is imported
when a domain is loaded: about 2 s, 100 MB.
"""

import gzip
import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from hashlib import sha256
from importlib import import_module, metadata
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollq.env import Action, Json
from rollq.env.copy_on_write import SharedDatabase, View
from rollq.env.customer_service import Case, ConversationDomain
from rollq.env.foreign_tools import copy_record, untouched
from rollq.errors import JobFailure
from rollq.pip_extras import install_line
from rollq_integrations.tau.backend import (
    TAU2_STOP_MARKERS,
    PackageBackend,
    record_text,
    tables_by_name,
    user_wishes,
)
from rollq_integrations.tau.scripted_tasks import scripted_case

SERIES = "0.26"
"""The series of inspect_evals that is accepted. The grading differs between versions, and rewards
are comparable only within one.
"""
MAX_ERRORS = 20
"""Number of errors of one call that the policy is told. A list of ten thousand strings where
objects belong has as many errors.
"""
NOT_REPLAYED = frozenset({"calculate", "transfer_to_human_agents"})
"""Tools that the package's scorer leaves out when it replays the ground truth. They do not change
the data.
"""


def load(variant: str | None) -> ConversationDomain:
    """The entry point. Raises JobFailure for another variant, and without the package or with
    another version of it.
    """
    if variant not in ("retail", "airline"):
        raise JobFailure(
            f"environment 'tau2_2025' has the variants retail and airline, not {variant!r}"
        )
    version = _installed_version()
    data = Path(str(_import("inspect_evals.tau2.utils").TAU2_DATA_DIR)) / "domains" / variant
    tables = gzip.decompress((data / "db.json.gz").read_bytes())
    system_prompt = (data / "policy.txt").read_text(encoding="utf-8")
    backend = Tau2Backend(variant, tables, system_prompt)
    digest = sha256(tables + system_prompt.encode()).hexdigest()[:12]
    version = f"inspect_evals {version} data {digest}"
    return ConversationDomain(f"tau2_2025:{variant}", version, backend, _cases(variant, data))


def _installed_version() -> str:
    try:
        version = metadata.version("inspect_evals")
    except metadata.PackageNotFoundError:
        raise JobFailure(
            "the environment tau2_2025 needs the package inspect_evals: "
            f"{install_line('tau2-2025')}"
        ) from None
    if version != SERIES and not version.startswith(f"{SERIES}."):
        raise JobFailure(
            f"the environment tau2_2025 needs inspect_evals {SERIES}.*, not {version}: "
            f"{install_line('tau2-2025')}"
        )
    return version


def _import(module: str) -> Any:
    # Warnings of the package's dependencies must not fail the import under -W error.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return import_module(module)
        except ImportError as e:
            raise JobFailure(
                f"the environment tau2_2025 cannot import {module} ({e}): "
                f"{install_line('tau2-2025')}"
            ) from e


class Tau2Backend(PackageBackend):
    """Implements customer_service.Backend."""

    stop_markers: Sequence[str] = TAU2_STOP_MARKERS

    def __init__(self, variant: str, tables: bytes, system_prompt: str) -> None:
        title = variant.capitalize()
        toolkit = _import(f"inspect_evals.tau2.{variant}.{title}AgentTools")
        wrappers = _import(f"inspect_evals.tau2.{variant}.tools")
        models = _import(f"inspect_evals.tau2.{variant}.data_model")
        define = _import("inspect_ai.tool").ToolDef
        validator = _import("jsonschema").Draft7Validator
        self._tool_error: type[Exception] = toolkit.ToolError
        self._first_message: str = _import("inspect_evals.tau2.common.dataset").USER_MESSAGE.text
        # The toolkit reads and writes through a store of the package's run time; its methods only
        # need `self.db`.
        methods = vars(getattr(toolkit, f"{title}AgentTools"))
        self._toolkit = type(
            "Toolkit",
            (),
            {name: method for name, method in methods.items() if inspect.isfunction(method)},
        )
        self._functions = {}  # tools that do not touch the database
        self._validators = {}
        # A tool's integer arguments. In JSON 2.0 is an integer, too; for tools it is not.
        self._integers: dict[str, set[str]] = {}
        tools = []
        for wrapper in getattr(wrappers, f"all_{variant}_tools"):
            tool = define(wrapper())
            parameters = tool.parameters.model_dump(exclude_none=True)
            function = {
                "name": tool.name,
                "description": tool.description,
                "parameters": parameters,
            }
            tools.append({"type": "function", "function": function})
            self._validators[tool.name] = validator(parameters)
            properties = parameters["properties"].items()
            self._integers[tool.name] = {
                key for key, schema in properties if schema.get("type") == "integer"
            }
            if tool.name not in methods:
                self._functions[tool.name] = tool.tool
        self.tools: Sequence[Json] = tools
        self.system_prompt = system_prompt
        db = getattr(models, {"retail": "RetailDB", "airline": "FlightDB"}[variant]).model_validate(
            json.loads(tables)
        )
        super().__init__(
            SharedDatabase(
                tables_by_name(db), copy=copy_record, canon=record_text, untouched=untouched
            )
        )

    def replay(self, view: View, calls: Sequence[Action]) -> None:
        for call in calls:
            if call.name not in NOT_REPLAYED:
                with suppress(self._tool_error):  # as the scorer does
                    self._run(view, call.name, deepcopy(dict(call.arguments)))

    def missing_outputs(self, outputs: Sequence[str], messages: Sequence[str]) -> list[str]:
        # The scorer joins the agent's messages, after the one that starts the user simulator.
        text = "\n".join([self._first_message, *messages]).lower().replace(",", "")
        return [output for output in outputs if output.lower() not in text]

    def invoke(self, view: View, name: str, arguments: dict[str, Json]) -> str:
        """The checks of the package's solver, then the tool."""
        if name not in self._validators:
            raise LookupError(f"Tool {name} not found")
        first_errors = islice(self._validators[name].iter_errors(arguments), MAX_ERRORS)
        errors = [error.message for error in first_errors]
        if errors:
            raise ValueError(
                f"{len(errors)} of the arguments of {name} are wrong: {'; '.join(errors)}"
            )
        arguments = dict(arguments)
        for key in self._integers[name] & arguments.keys():
            arguments[key] = int(arguments[key])
        try:
            if name in self._functions:
                return _result_of(self._functions[name](**arguments))
            result = self._run(view, name, arguments)
        except self._tool_error as e:
            raise ValueError(str(e)) from e
        return result if isinstance(result, str) else json.dumps(result, sort_keys=True)

    def _run(self, view: View, name: str, arguments: dict[str, Json]) -> Any:
        toolkit = self._toolkit()
        toolkit.db = SimpleNamespace(**view)
        return getattr(toolkit, name)(**arguments)


def _result_of(coroutine: Any) -> str:
    """The result of a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        return str(e.value)
    coroutine.close()
    raise TypeError("the tool waits for something")


def _cases(variant: str, data: Path) -> Mapping[str, Sequence[Case]]:
    """The splits of the split file, each in the order of the task file, as in the package's data
    set.
    """
    load_task = _import("inspect_evals.tau2.data_model.tasks").Task.model_validate
    records = json.loads((data / "tasks.json").read_text(encoding="utf-8"))
    splits = json.loads((data / "split_tasks.json").read_text(encoding="utf-8"))
    cases = {record["id"]: _case(variant, record, load_task(record)) for record in records}
    return {
        split: [case for key, case in cases.items() if key in set(ids)]
        for split, ids in splits.items()
    }


def _case(variant: str, record: Mapping[str, Json], task: Any) -> Case:
    criteria = task.evaluation_criteria
    scenario = task.user_scenario.instructions
    if task.initial_state is not None:
        raise JobFailure(
            f"tau2_2025:{variant} task {task.id} changes the database before it "
            "starts: not supported"
        )
    if any(action.requestor != "assistant" for action in criteria.actions):
        raise JobFailure(
            f"tau2_2025:{variant} task {task.id} has tools for the user: not supported"
        )
    return scripted_case(
        task.id,
        record,
        instruction=str(task.user_scenario),
        wishes=user_wishes(scenario),
        calls=[Action(action.name, action.arguments) for action in criteria.actions],
        outputs=criteria.communicate_info or (),
        closing_tools=frozenset(),
    )
