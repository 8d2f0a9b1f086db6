"""A backend that calls a benchmark's own tools on views of one shared database. Grading compares
the database and the required outputs.
"""

import json
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import Distribution
from typing import Any

from rollq.env import Action, Json, Observation
from rollq.env.copy_on_write import View
from rollq.env.customer_service import DatabaseBackend
from rollq.env.foreign_tools import TOOL_ERRORS, guarded, own_copy

TAU2_STOP_MARKERS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""Texts by which tau2-bench's user ends the conversation. A transfer call of the agent does not end
it.
"""


class PackageBackend(DatabaseBackend):
    """Implements customer_service.Backend."""

    closing_tools: frozenset[str] = frozenset()
    """Tools that end the episode."""

    @abstractmethod
    def invoke(self, view: View, name: str, arguments: dict[str, Json]) -> str:
        """Calls a tool. Raises one of TOOL_ERRORS for a wrong call."""

    def call(self, view: View, action: Action) -> Observation:
        text = guarded(
            lambda arguments: self.invoke(view, action.name, arguments), action.arguments
        )
        return Observation(text, done=action.name in self.closing_tools)

    def replay(self, view: View, calls: Sequence[Action]) -> None:
        for call in calls:
            if call.name not in self.closing_tools:
                with suppress(*TOOL_ERRORS):  # as the packages' own scorers do
                    self.invoke(view, call.name, own_copy(call.arguments))

    def missing_outputs(self, outputs: Sequence[str], messages: Sequence[str]) -> list[str]:
        # As the benchmarks' own scorers: an output must be within one message, and only messages
        # lose their commas.
        plain = [message.lower().replace(",", "") for message in messages]
        missing = []
        for output in outputs:
            if not any(output.lower() in message for message in plain):
                missing.append(output)
        return missing


def record_text(record: Any) -> str:
    """The record as tau2-bench's hashes write it."""
    return json.dumps(record.model_dump(warnings=False), sort_keys=True, default=str)


def tables_by_name(db: Any) -> dict[str, Any]:
    """The tables of tau2-bench's database."""
    return {name: getattr(db, name) for name in type(db).model_fields}


def user_wishes(instructions: Any) -> str:
    """A user's goals in tau2-bench's own words, without the fields that are empty or only dots."""
    parts = (
        instructions.known_info,
        instructions.reason_for_call,
        instructions.unknown_info,
        instructions.task_instructions,
    )
    goals = [" ".join(part.split()) for part in parts if part and part.strip(" .")]
    return "\n".join(goals)


def version_with_commit(name: str, installed: Distribution) -> str:
    """Name and version, with the commit that it was installed from if that is known."""
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id")
    version = f"{name} {installed.version}"
    return f"{version} commit {commit}" if commit else version
