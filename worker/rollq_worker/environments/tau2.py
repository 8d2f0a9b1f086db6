"""tau2-bench's retail and airline domains, with tools, tasks, data and grading of the package `inspect_evals`.

The tools run unchanged, on views of one shared database, and an episode earns what the package's scorer gives it. Only
versions that the tests have compared are accepted. The package is imported when a domain is loaded: about 2 s, 100 MB.
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

from rollq.errors import JobFailure
from rollq.extras import install_line
from rollq.job import Json
from rollq_worker.environments.copy_on_write import SharedDatabase, View
from rollq_worker.environments.customer_service import Case, ConversationDomain
from rollq_worker.environments.foreign_tools import copy_record, guarded
from rollq_worker.environments.scripted_tasks import scripted_case
from rollq_worker.protocols import Action, Observation

SERIES = "0.26"
"""Of inspect_evals: the grading differs between versions, and rewards are only comparable within one."""
STOP_MARKERS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
MAX_ERRORS = 20
"""Errors of one call that the policy is told: ten thousand strings where objects belong are as many errors."""
NOT_REPLAYED = frozenset({"calculate", "transfer_to_human_agents"})
"""Tools that the package's scorer leaves out when it replays the ground truth; neither touches the data."""


def load(variant: str | None) -> ConversationDomain:
    """The entry point. Raises JobFailure for another variant, and without the package or with another version of it."""
    if variant not in ("retail", "airline"):
        raise JobFailure(f"environment 'tau2' has the variants retail and airline, not {variant!r}")
    version = _installed()
    data = Path(str(_import("inspect_evals.tau2.utils").TAU2_DATA_DIR)) / "domains" / variant
    tables = gzip.decompress((data / "db.json.gz").read_bytes())
    policy = (data / "policy.txt").read_text(encoding="utf-8")
    backend = Tau2Backend(variant, tables, policy)
    digest = sha256(tables + policy.encode()).hexdigest()[:12]
    version = f"inspect_evals {version} data {digest}"
    return ConversationDomain(f"tau2:{variant}", version, backend, _cases(variant, data))


def _installed() -> str:
    try:
        version = metadata.version("inspect_evals")
    except metadata.PackageNotFoundError:
        raise JobFailure(f"the environment tau2 needs the package inspect_evals: {install_line('tau2')}") from None
    if version != SERIES and not version.startswith(f"{SERIES}."):
        raise JobFailure(f"the environment tau2 needs inspect_evals {SERIES}.*, not {version}: {install_line('tau2')}")
    return version


def _import(module: str) -> Any:
    # Warnings of the package's dependencies must not fail the import under -W error.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return import_module(module)
        except ImportError as e:
            raise JobFailure(f"the environment tau2 cannot import {module} ({e}): {install_line('tau2')}") from e


class Tau2Desk:
    """Implements conversation.Desk."""

    markers: Sequence[str] = MARKERS
    closing: frozenset[str] = frozenset()
    """None: after a transfer the conversation goes on until the user says ###TRANSFER###."""

    def __init__(self, variant: str, tables: bytes, policy: str) -> None:
        title = variant.capitalize()
        toolkit = _import(f"inspect_evals.tau2.{variant}.{title}AgentTools")
        wrappers = _import(f"inspect_evals.tau2.{variant}.tools")
        models = _import(f"inspect_evals.tau2.{variant}.data_model")
        define = _import("inspect_ai.tool").ToolDef
        validator = _import("jsonschema").Draft7Validator
        self._error: type[Exception] = toolkit.ToolError
        self._opener: str = _import("inspect_evals.tau2.common.dataset").USER_MESSAGE.text
        # The toolkit reads and writes through a store of the package's run time; its methods only need `self.db`.
        methods = vars(getattr(toolkit, f"{title}AgentTools"))
        self._toolkit = type("Toolkit", (), {k: v for k, v in methods.items() if inspect.isfunction(v)})
        self._free = {}
        self._validators = {}
        tools = []
        for wrapper in getattr(wrappers, f"all_{variant}_tools"):
            tool = define(wrapper())
            parameters = tool.parameters.model_dump(exclude_none=True)
            function = {"name": tool.name, "description": tool.description, "parameters": parameters}
            tools.append({"type": "function", "function": function})
            self._validators[tool.name] = validator(parameters)
            if tool.name not in methods:
                self._free[tool.name] = tool.tool
        self.tools: Sequence[Json] = tools
        self.policy = policy
        db = getattr(models, {"retail": "RetailDB", "airline": "FlightDB"}[variant]).model_validate(json.loads(tables))
        self.database = Database({name: getattr(db, name) for name in type(db).model_fields}, copy=_copy, canon=_canon)

    def call(self, view: dict[str, Table], name: str, arguments: dict[str, Json]) -> str:
        if name not in self._validators:
            raise LookupError(f"Tool {name} not found")
        if errors := [e.message for e in islice(self._validators[name].iter_errors(arguments), MOST_ERRORS)]:
            raise ValueError(f"{len(errors)} of the arguments of {name} are wrong: {'; '.join(errors)}")
        arguments = {key: int(value) if self._whole(name, key) else value for key, value in arguments.items()}
        try:
            if name in self._free:
                return _at_once(self._free[name](**arguments))
            result = self._run(view, name, arguments)
        except self._error as e:
            raise ValueError(str(e)) from e
        return result if isinstance(result, str) else json.dumps(result, sort_keys=True)

    def replay(self, view: dict[str, Table], actions: Sequence[Action]) -> None:
        for action in actions:
            if action.name not in UNREPLAYED:
                with suppress(self._error):  # as the scorer does
                    self._run(view, action.name, deepcopy(dict(action.arguments)))

    def untold(self, outputs: Sequence[str], told: Sequence[str]) -> list[str]:
        # The scorer joins the agent's messages, behind the one that starts the user simulator.
        text = "\n".join([self._opener, *told]).lower().replace(",", "")
        return [output for output in outputs if output.lower() not in text]

    def _run(self, view: dict[str, Table], name: str, arguments: dict[str, Json]) -> Any:
        toolkit = self._toolkit()
        toolkit.db = SimpleNamespace(**view)
        return getattr(toolkit, name)(**arguments)

    def _whole(self, name: str, key: str) -> bool:
        """JSON's integers include 2.0, a tool's do not."""
        return bool(self._validators[name].schema["properties"][key].get("type") == "integer")


def _at_once(coroutine: Any) -> str:
    """The result of a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        return str(e.value)
    coroutine.close()
    raise TypeError("the tool waits for something")


_LEAVES = (str, float, int, type(None))


def _copy(record: Record) -> Record:
    """A deep copy of a tree of pydantic models; `model_copy(deep=True)` takes several times as long."""
    if isinstance(record, dict):
        return {key: _copy(value) for key, value in record.items()}
    if isinstance(record, list):
        return [_copy(value) for value in record]
    if hasattr(record, "model_copy"):
        copied = record.model_copy()
        fields = vars(copied)
        for key, value in fields.items():
            if not isinstance(value, _LEAVES):
                fields[key] = _copy(value)
        return copied
    return record


def _canon(record: Record) -> str:
    """As the package's `get_pydantic_hash` writes the whole database."""
    return json.dumps(record.model_dump(warnings=False), sort_keys=True, default=str)


def _cases(variant: str, data: Path) -> Mapping[str, Sequence[Case]]:
    """The splits of the split file, each in the order of the task file, as the package's data set has them."""
    load_task = _import("inspect_evals.tau2.data_model.tasks").Task.model_validate
    records = json.loads((data / "tasks.json").read_text(encoding="utf-8"))
    splits = json.loads((data / "split_tasks.json").read_text(encoding="utf-8"))
    cases = {record["id"]: _case(variant, record, load_task(record)) for record in records}
    return {split: [case for key, case in cases.items() if key in set(ids)] for split, ids in splits.items()}


def _case(variant: str, record: Mapping[str, Json], task: Any) -> Case:
    where = f"tau2:{variant} task {task.id}"
    criteria, told = task.evaluation_criteria, task.user_scenario.instructions
    if task.initial_state is not None:
        raise JobFailure(f"{where} changes the database before it starts, which is not supported")
    if any(action.requestor != "assistant" for action in criteria.actions):
        raise JobFailure(f"{where} has tools for the user, which is not supported")
    calls = [Action(action.name, action.arguments) for action in criteria.actions]
    outputs = tuple(criteria.communicate_info or ())
    said = (told.known_info, told.reason_for_call, told.unknown_info, told.task_instructions)
    return Case(
        task=Task(
            id=task.id,
            hash=sha256(json.dumps(record, sort_keys=True).encode()).hexdigest(),
            instruction=str(task.user_scenario),
            opening=first_person("\n".join(" ".join(part.split()) for part in said if part and part.strip(" ."))),
            replies=REPLIES,
            moves=script(calls, outputs, Tau2Desk.closing),
            outputs=outputs,
        ),
        truth=calls,
    )
