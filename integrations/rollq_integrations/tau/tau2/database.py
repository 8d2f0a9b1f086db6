"""Retail and airline: the package's tools on views of one shared database."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from rollq.env import Json
from rollq.env.copy_on_write import SharedDatabase, View
from rollq.env.foreign_tools import (
    check_calculation,
    copy_record,
    untouched,
)
from rollq_integrations.tau.backend import (
    TAU2_STOP_MARKERS,
    PackageBackend,
    record_text,
    tables_by_name,
)


class Tau2Backend(PackageBackend):
    """Implements customer_service.Backend for retail and airline."""

    stop_markers: Sequence[str] = TAU2_STOP_MARKERS

    def __init__(self, environment: Any) -> None:
        self.tools: Sequence[Json] = [tool.openai_schema for tool in environment.get_tools()]
        self.system_prompt: str = environment.get_policy()
        self._toolkit = type(environment.tools)
        self._text = environment.to_json_str
        records = tables_by_name(environment.tools.db)
        super().__init__(
            SharedDatabase(records, copy=copy_record, canon=record_text, untouched=untouched)
        )

    def invoke(self, view: View, name: str, arguments: dict[str, Json]) -> str:
        check_calculation(name, arguments)
        text: str = self._text(self._toolkit(SimpleNamespace(**view)).use_tool(name, **arguments))
        return text
