"""Retail and airline: the package's tools on views of one shared database."""

import json
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from rollq.env import Action, Observation
from rollq.env.copy_on_write import SharedDatabase, View
from rollq.env.customer_service import DatabaseBackend
from rollq.job import Json
from rollq_worker.environments.foreign_tools import (
    TOOL_ERRORS,
    check_calculation,
    copy_record,
    guarded,
    own_copy,
    untouched,
)

STOP_MARKERS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")


class Tau2Backend(DatabaseBackend):
    """Implements customer_service.Backend for retail and airline. A transfer does not end an episode: the user's
    ###TRANSFER### does."""

    stop_markers: Sequence[str] = STOP_MARKERS

    def __init__(self, environment: Any) -> None:
        self.tools: Sequence[Json] = [tool.openai_schema for tool in environment.get_tools()]
        self.policy: str = environment.get_policy()
        self._toolkit = type(environment.tools)
        self._text = environment.to_json_str
        db = environment.tools.db
        records = {name: getattr(db, name) for name in type(db).model_fields}
        super().__init__(SharedDatabase(records, copy=copy_record, canon=_canon, untouched=untouched))

    def call(self, view: View, action: Action) -> Observation:
        return Observation(guarded(lambda arguments: self._invoke(view, action.name, arguments), action.arguments))

    def replay(self, view: View, calls: Sequence[Action]) -> None:
        for call in calls:
            with suppress(*TOOL_ERRORS):  # as the package's evaluator does
                self._invoke(view, call.name, {name: own_copy(value) for name, value in call.arguments.items()})

    def missing_outputs(self, outputs: Sequence[str], messages: Sequence[str]) -> list[str]:
        plain = [message.lower().replace(",", "") for message in messages]
        return [output for output in outputs if not any(output.lower() in message for message in plain)]

    def _invoke(self, view: View, name: str, arguments: dict[str, Json]) -> str:
        check_calculation(name, arguments)
        text: str = self._text(self._toolkit(SimpleNamespace(**view)).use_tool(name, **arguments))
        return text


def _canon(record: Any) -> str:
    """The record as the package's `get_dict_hash` writes it."""
    return json.dumps(record.model_dump(warnings=False), sort_keys=True, default=str)
