"""The shop as a Domain: a backend for customer-service conversations, and its tasks.

It is graded as in tau-bench: 1.0 if the data ends up as the ground truth leaves it and the user was
told every output, else 0.0. Tasks are made when they are first asked for.
"""

from collections.abc import Callable, Sequence
from functools import cache

from rollq.env import RESPOND, STOP_MARKER, Action, Observation
from rollq.env.copy_on_write import View
from rollq.env.customer_service import Case, ConversationDomain, DatabaseBackend
from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.environments.shop import desk, tools
from rollq_worker.environments.shop.records import SPLITS
from rollq_worker.environments.shop.rules import SYSTEM_PROMPT
from rollq_worker.environments.shop.tasks import make_task

VERSION = "3"
"""Version of the shop's rules, data, tools and tasks; the desk has its own, desk.VERSION. Rewards
are comparable only within one version. A test pins the digest of the tasks under it.
"""


def load(variant: str | None) -> ConversationDomain:
    """The entry point. Raises JobFailure for a variant that does not exist."""
    if variant == "desk":
        cases = {split: _Cases(split, size, desk.make_case) for split, size in desk.SPLITS.items()}
        return desk.DeskDomain(
            "shop:desk", f"shop:desk {desk.VERSION}", DeskBackend(desk.RULES, desk.TOOLS), cases
        )
    if variant is not None:
        raise JobFailure(f"environment 'shop' has no variant {variant!r}; it has 'desk'")
    cases = {split: _Cases(split, size, _shop_case) for split, size in SPLITS.items()}
    return ConversationDomain(
        "shop", f"shop {VERSION}", ShopBackend(SYSTEM_PROMPT, tools.SCHEMAS), cases
    )


class ShopBackend(DatabaseBackend):
    """Implements customer_service.Backend."""

    stop_markers: Sequence[str] = (STOP_MARKER,)

    def __init__(self, system_prompt: str, schemas: Sequence[Json]) -> None:
        super().__init__(tools.shared_database())
        self.system_prompt = system_prompt
        self.tools = schemas

    def call(self, view: View, action: Action) -> Observation:
        text = tools.call(view, action.name, action.arguments)
        return Observation(text, done=view["conversation"][tools.HANDED_OVER])

    def replay(self, view: View, calls: Sequence[Action]) -> None:
        for call in calls:
            self.call(view, call)

    def missing_outputs(self, outputs: Sequence[str], messages: Sequence[str]) -> list[str]:
        plain = [_plain(message) for message in messages]
        return [
            output for output in outputs if not any(_plain(output) in message for message in plain)
        ]


class DeskBackend(ShopBackend):
    """The shop's backend, for which a message that says both outcomes of a request says neither."""

    def missing_outputs(self, outputs: Sequence[str], messages: Sequence[str]) -> list[str]:
        missing = super().missing_outputs
        return missing(
            outputs, [message for message in messages if missing(desk.OUTCOMES, [message])]
        )


class _Cases(Sequence[Case]):
    """The tasks of a split."""

    def __init__(self, split: str, size: int, make: Callable[[str, int], Case]) -> None:
        self._split = split
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Case:  # type: ignore[override]
        return self._make(self._split, index)


@cache
def _shop_case(split: str, index: int) -> Case:
    task = make_task(split, index)
    return Case(task=task, calls=[move for move in task.moves if move.name != RESPOND])


def _plain(text: str) -> str:
    return text.lower().replace(",", "")
