"""The agent's tools in the shop: schemas in OpenAI's form and the functions behind them.

`call` never raises for what the policy did: unknown tools, wrong arguments and impossible changes
come back as "Error: ...". The tools keep the data consistent. They do not enforce most of the
agent's rules, such as who may ask for what.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from decimal import Decimal
from functools import cache, partial

from rollq.env.copy_on_write import SharedDatabase, View
from rollq.job import Json
from rollq_worker.environments.shop.calculator import calculate
from rollq_worker.environments.shop.records import DELIVERED, PENDING, bought, items_total, records

NOT_NEEDED = "no longer needed"
BY_MISTAKE = "ordered by mistake"
CANCEL_REASONS = (NOT_NEEDED, BY_MISTAKE)
WRAP_FEE = "4.50"
"""Price of gift wrap. Gold members pay nothing."""
TRANSFER = "transfer_to_human"
"""The tool that hands over to a human, which ends the episode."""
HANDED_OVER = "handed over"

ToolFunction = Callable[..., Json]


class CallError(Exception):
    """A tool call that cannot be carried out, in words for the policy."""


@cache
def shared_database() -> SharedDatabase:
    """The tables that an episode can change. A transfer to a human agent is graded, too."""
    tables = {"orders": records().orders, "conversation": {HANDED_OVER: False}}
    canon = partial(json.dumps, sort_keys=True)
    return SharedDatabase(tables, copy=deepcopy, canon=canon, name=lambda _, key: key)


def call(data: View, name: str, arguments: Mapping[str, Json]) -> str:
    """The tool's result as compact JSON, or "Error: ..."."""
    tool = _TOOLS.get(name)
    if tool is None:
        return f"Error: there is no tool {_quoted(name)}"
    schema, run = tool
    problem = _problem(arguments, schema["function"]["parameters"])
    if problem is not None:
        return f"Error: {problem}"
    try:
        return json.dumps(run(data, **arguments), separators=(",", ":"))
    except CallError as error:
        return f"Error: {error}"


def _problem(arguments: Json, parameters: Mapping[str, Json]) -> str | None:
    """The first fault of the arguments by the schema that the policy sees, or None."""
    if not isinstance(arguments, Mapping):
        return "the arguments must be an object"
    schemas: Mapping[str, Json] = parameters["properties"]
    missing = [name for name in schemas if name not in arguments]
    if missing:
        return f"missing argument {', '.join(missing)}"
    for name, value in arguments.items():
        if name not in schemas:
            return f"unknown argument {_quoted(str(name))}"
        if not _fits(value, schemas[name]):
            return f"argument {name} must be {_expected(schemas[name])}"
    return None


def _fits(value: Json, schema: Mapping[str, Json]) -> bool:
    if schema["type"] == "array":
        if not isinstance(value, list) or not value:
            return False
        return all(isinstance(part, str) for part in value)
    if schema["type"] == "boolean":
        return isinstance(value, bool)
    return isinstance(value, str) and value in schema.get("enum", (value,))


def _expected(schema: Mapping[str, Json]) -> str:
    if schema["type"] == "array":
        return "a list of strings, not empty"
    if schema["type"] == "boolean":
        return "true or false"
    return f"one of {', '.join(map(repr, schema['enum']))}" if "enum" in schema else "a string"


def _quoted(text: str) -> str:
    """The text in quotes, in ASCII, cut to about 80 characters: the policy may have sampled a long
    one.
    """
    shown = ascii(text[:80])
    return shown if len(text) <= 80 and len(shown) <= 80 else f"{shown[:80]}..."


def _text(description: str, *, enum: tuple[str, ...] = ()) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "string", "description": description}
    if enum:
        schema["enum"] = list(enum)
    return schema


_ORDER_ID = _text("The order's id, such as 'S-48213'.")
_TOOLS: dict[str, tuple[dict[str, Json], ToolFunction]] = {}
"""Schema and function by name, in the order in which the policy is shown them."""


def _tool(
    description: str, **properties: dict[str, Json]
) -> Callable[[ToolFunction], ToolFunction]:
    """Makes a function the tool with the function's name. All parameters are required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}

    def add(run: ToolFunction) -> ToolFunction:
        name = run.__name__.removeprefix("_")
        function = {
            "name": name,
            "description": description,
            "parameters": parameters | {"additionalProperties": False},
        }
        _TOOLS[name] = {"type": "function", "function": function}, run
        return run

    return add


def _look_up(table: Mapping[str, Json], kind: str, id: str) -> Json:
    record = table.get(id)
    if record is None:
        raise CallError(f"there is no {kind} {_quoted(id)}")
    return record


def _order_in(data: View, order_id: str, status: str) -> Json:
    """The order, copied for changes. Raises CallError unless it has this status."""
    order = _look_up(data["orders"], "order", order_id)
    if order["status"] != status:
        raise CallError(f"order {order_id} is {order['status']}, not {status}")
    return order


def _item(order: Json, item_id: str) -> Json:
    for item in order["items"]:
        if item["item_id"] == item_id:
            return item
    raise CallError(f"order {order['order_id']} holds no item {_quoted(item_id)}")


def _settle(order: Json, payment_id: str, amount: Decimal) -> None:
    """Charges a payment method of the order's customer; refunds are negative. Raises CallError for
    a method of another customer.
    """
    if payment_id not in records().customers[order["customer_id"]]["payment_methods"]:
        raise CallError(
            f"the customer of order {order['order_id']} has no payment method {_quoted(payment_id)}"
        )
    order.setdefault("settled", []).append({"payment_method_id": payment_id, "amount": str(amount)})


def _customer_in(ids: Mapping[str, str], key: str) -> Json | None:
    """The customer whose id has this key, in any case."""
    customer_id = ids.get(key.strip().lower())
    return None if customer_id is None else records().customers[customer_id]


@_tool("Find a customer's id by e-mail address.", email=_text("The e-mail address."))
def _find_customer_by_email(data: View, email: str) -> Json:
    customer = _customer_in(records().ids_by_email, email)
    if customer is None:
        raise CallError(f"there is no customer with the e-mail address {_quoted(email)}")
    return {"customer_id": customer["customer_id"]}


@_tool(
    "Find a customer's id by name and zip code.",
    name=_text("First and last name."),
    zip=_text("The zip code of the customer's own address, five digits."),
)
def _find_customer_by_name(data: View, name: str, zip: str) -> Json:
    customer = _customer_in(records().ids_by_name, name)
    if customer is None or customer["address"]["zip"] != zip.strip():
        raise CallError("there is no customer with this name and zip code")
    return {"customer_id": customer["customer_id"]}


@_tool(
    "Get a customer's profile: address, membership, payment methods and orders.",
    customer_id=_text("The customer's id, such as 'C-4821'."),
)
def _get_customer(data: View, customer_id: str) -> Json:
    customer = _look_up(records().customers, "customer", customer_id)
    orders = [data["orders"].peek(order_id) for order_id in customer["orders"]]
    shown = [
        {
            "order_id": order["order_id"],
            "status": order["status"],
            "items": [item["name"] for item in order["items"]],
        }
        for order in orders
    ]
    return {**customer, "orders": shown}


@_tool("Get an order: status, dates, address, items with prices, total.", order_id=_ORDER_ID)
def _get_order(data: View, order_id: str) -> Json:
    _look_up(records().orders, "order", order_id)
    return data["orders"].peek(order_id)


@_tool(
    "Get all variants of a product with item ids, prices and stock.",
    product_id=_text("The product's id, such as 'P-24'."),
)
def _get_product(data: View, product_id: str) -> Json:
    return _look_up(records().products, "product", product_id)


@_tool(
    "Cancel a pending order; what was paid goes back to the order's payment method.",
    order_id=_ORDER_ID,
    reason=_text("Why the customer cancels.", enum=CANCEL_REASONS),
)
def _cancel_order(data: View, order_id: str, reason: str) -> Json:
    order = _order_in(data, order_id, PENDING)
    _settle(order, order["payment_method_id"], -Decimal(order["total"]))
    order |= {"status": "cancelled", "cancelled_because": reason}
    return {
        "order_id": order_id,
        "status": "cancelled",
        "refund": order["total"],
        "payment_method_id": order["payment_method_id"],
    }


@_tool(
    "Change where a pending order is sent.",
    order_id=_ORDER_ID,
    street=_text("House number and street."),
    city=_text("The city."),
    state=_text("The state, two letters."),
    zip=_text("The zip code, five digits."),
)
def _change_address(data: View, order_id: str, **address: str) -> Json:
    order = _order_in(data, order_id, PENDING)
    order["address"] = address
    return {"order_id": order_id, "address": address}


@_tool(
    "Have a pending order gift-wrapped, or no longer.",
    order_id=_ORDER_ID,
    wrapped={"type": "boolean", "description": "Whether it shall be gift-wrapped."},
)
def _set_gift_wrap(data: View, order_id: str, wrapped: bool) -> Json:
    order = _order_in(data, order_id, PENDING)
    gold = records().customers[order["customer_id"]]["gold_member"]
    fee = "0.00" if gold else WRAP_FEE
    order["gift_wrap"] = fee if wrapped else None
    order["total"] = _order_total(order)
    return {name: order[name] for name in ("order_id", "gift_wrap", "total")}


@_tool(
    "Change one item of a pending order for another variant of its product.",
    order_id=_ORDER_ID,
    item_id=_text("The item in the order, such as 'P-24-3'."),
    new_item_id=_text(
        "The item wanted instead: another variant of the same product that is in stock."
    ),
    payment_method_id=_text("One of the customer's payment methods, such as 'card-4821'."),
)
def _change_item(
    data: View, order_id: str, item_id: str, new_item_id: str, payment_method_id: str
) -> Json:
    order = _order_in(data, order_id, PENDING)
    old = _item(order, item_id)
    product = records().products[old["product_id"]]
    variant = next((item for item in product["items"] if item["item_id"] == new_item_id), None)
    if variant is None:
        raise CallError(f"{_quoted(new_item_id)} is not a variant of the same product as {item_id}")
    if new_item_id == item_id:
        raise CallError(f"{new_item_id} is the item in the order")
    if not variant["in_stock"]:
        raise CallError(f"{new_item_id} is sold out")
    difference = Decimal(variant["price"]) - Decimal(old["price"])
    _settle(order, payment_method_id, difference)
    new = bought(product, variant)
    order["items"] = [new if item["item_id"] == item_id else item for item in order["items"]]
    order["total"] = _order_total(order)
    return {"order_id": order_id, "new_item": new, "price_difference": str(difference)}


def _order_total(order: Json) -> str:
    return str(items_total(order["items"]) + Decimal(order["gift_wrap"] or 0))


@_tool(
    "Return items of a delivered order for a refund. Possible once per order.",
    order_id=_ORDER_ID,
    item_ids={
        "type": "array",
        "items": {"type": "string"},
        "description": "All items to be returned.",
    },
    payment_method_id=_text(
        "Where the refund goes: the order's own payment method or a store credit."
    ),
)
def _return_items(
    data: View, order_id: str, item_ids: Sequence[str], payment_method_id: str
) -> Json:
    order = _order_in(data, order_id, DELIVERED)
    refund = items_total(_item(order, item_id) for item_id in item_ids)
    if len(set(item_ids)) != len(item_ids):
        raise CallError("an item is named twice")
    _settle(order, payment_method_id, -refund)
    # Sorted: the order in which the items were named must not decide the reward.
    order |= {"status": "return requested", "items_sent_back": sorted(item_ids)}
    return {"order_id": order_id, "status": order["status"], "refund": str(refund)}


@_tool(
    "Work out a sum with numbers, + - * / and parentheses; two decimals.",
    expression=_text("Such as '(129.45 + 17.20) * 2'."),
)
def _calculate(data: View, expression: str) -> Json:
    try:
        return calculate(expression)
    except ValueError as error:
        raise CallError(str(error)) from None


@_tool(
    "Hand the conversation over to a human agent. It ends here for you.",
    summary=_text("What the customer needs, in one sentence."),
)
def _transfer_to_human(data: View, summary: str) -> Json:
    data["conversation"][HANDED_OVER] = True
    return "A human agent has taken over."


SCHEMAS = tuple(schema for schema, _ in _TOOLS.values())
"""The schemas of all tools, shared by all episodes and never changed."""
