"""The service desk: the shop's smallest tasks, for small models. `shop:desk` is its name.

The data, the tools and the grading are the shop's. A customer makes one request in the first
message. The desk has the customer's order open, so no tool takes an order id. The first message of
the agent to the customer ends the conversation. It has to say what came of the request: a call that
fails changes as little as a refusal does. A prompt has about a quarter of the tokens of the shop's.

Task i of a split is a pure function of (split, i). Tasks i and j concern the same order if i //
KINDS == j // KINDS.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256

from rollq.env import RESPOND, STOP_MARKER, Action, Observation, Task
from rollq.env.customer_service import Case, Conversation, ConversationDomain
from rollq.job import Json
from rollq_worker.environments.shop.records import PENDING, records
from rollq_worker.environments.shop.records import SPLITS as CUSTOMERS
from rollq_worker.environments.shop.tools import BY_MISTAKE, NOT_NEEDED, SCHEMAS, TRANSFER

VERSION = "3"
"""Version of policy and tasks. Rewards are comparable only within one version. A test pins their
digest under it.
"""
DONE, REFUSED = OUTCOMES = ("It is done.", "I am sorry, I cannot do that.")
"""The agent's last words in a conversation: exactly one of these."""
RULES = f"""\
You are the service desk of an online shop, with the customer's order on your screen. Do with one \
tool call what the customer asks for, then say: {DONE} An order can be cancelled only as \
{NOT_NEEDED} or {BY_MISTAKE}. Hand over who does not recognise a charge or closes the account. \
Refuse everything else, and say: {REFUSED}
"""

REQUESTS: Sequence[tuple[str, Action | None]] = (
    (
        "I no longer need my order. Please cancel it.",
        Action("cancel_order", {"reason": NOT_NEEDED}),
    ),
    (
        "I ordered by mistake. Please cancel my order.",
        Action("cancel_order", {"reason": BY_MISTAKE}),
    ),
    (
        "My order is a present. Please have it gift-wrapped.",
        Action("set_gift_wrap", {"wrapped": True}),
    ),
    (
        "My card was charged and I do not know for what.",
        Action(TRANSFER, {"summary": "Unknown charge."}),
    ),
    ("I want my account to be closed.", Action(TRANSFER, {"summary": "Closing the account."})),
    ("I have found it cheaper in another shop. Please cancel my order.", None),
    ("Please cancel the order of my friend, who has no time.", None),
    ("Please give me a discount on my order.", None),
)
"""Customers' requests, each with the call that it takes, or None if the policy refuses."""
KINDS = len(REQUESTS)
ORDERS = 2
"""Number of pending orders of each customer."""
SPLITS: Mapping[str, int] = {
    split: customers * ORDERS * KINDS for split, customers in CUSTOMERS.items()
}


def _without_order(schema: Json) -> Json:
    function = schema["function"]
    properties = {
        name: value
        for name, value in function["parameters"]["properties"].items()
        if name != "order_id"
    }
    parameters = {**function["parameters"], "properties": properties, "required": list(properties)}
    return {**schema, "function": {**function, "parameters": parameters}}


TOOLS: Sequence[Json] = tuple(
    _without_order(schema)
    for schema in SCHEMAS
    if schema["function"]["name"] in {call.name for _, call in REQUESTS if call}
)


class DeskDomain(ConversationDomain):
    """A conversation domain whose episodes name the order in each call."""

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Conversation:
        super().open(split, index, args)
        return Desk(self, self._find(split, index), order_of(split, index)["order_id"])


class Desk(Conversation):
    def __init__(self, domain: ConversationDomain, case: Case, order_id: str) -> None:
        super().__init__(domain, case)
        self._order_id = order_id

    def step(self, action: Action) -> Observation:
        return super().step(on_order(action, self._order_id))


def on_order(action: Action, order_id: str) -> Action:
    """The call as the shop's tools take it."""
    if action.name in (RESPOND, TRANSFER):
        return action
    return Action(action.name, {**action.arguments, "order_id": order_id})


def order_of(split: str, index: int) -> Json:
    """The order that the desk has open."""
    customer = records().customers[records().task_customers[split, index // (ORDERS * KINDS)]]
    orders = [records().orders[id] for id in customer["orders"]]
    return [order for order in orders if order["status"] == PENDING][index // KINDS % ORDERS]


@cache
def make_case(split: str, index: int) -> Case:
    """Task `index` of a split. The caller has checked both."""
    task = make_task(split, index)
    order_id = order_of(split, index)["order_id"]
    return Case(
        task=task, calls=[on_order(move, order_id) for move in task.moves if move.name != RESPOND]
    )


def make_task(split: str, index: int) -> Task:
    order = order_of(split, index)
    asks, call = REQUESTS[index % KINDS]
    name = records().customers[order["customer_id"]]["name"]
    opening = f"Hello, this is {name} about order {order['order_id']}. {asks}"
    answer = DONE if call else REFUSED
    goodbye = Action(RESPOND, {"content": answer})
    moves: tuple[Action, ...] = (goodbye,)
    outputs: tuple[str, ...] = (answer,)
    if call is not None and call.name == TRANSFER:  # which ends the conversation
        moves = (call,)
        outputs = ()
    elif call is not None:
        moves = (call, goodbye)
    return Task(
        id=f"shop:desk/{split}/{index}",
        hash=sha256(repr((order, opening, moves, outputs, RULES)).encode()).hexdigest()[:16],
        instruction=f"You ask the service desk: {asks}",
        opening=opening,
        replies=(f"Thank you, that is all. {STOP_MARKER}",),
        moves=moves,
        outputs=outputs,
    )
