"""The agent's tools in the shop: schemas in OpenAI's form and the functions behind them.

`call` never raises for what the policy did: unknown tools, wrong arguments and impossible changes come back as "Error:
...". The tools keep the data consistent. They do not enforce most rules of the policy, such as who may ask for what.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from rollq.job import Json
from rollq_worker.environments.shop import calculator
from rollq_worker.environments.shop.catalogue import catalogue, money
from rollq_worker.environments.shop.database import CallError, ShopData, shorten
from rollq_worker.environments.shop.records import Address, Order, Status, all_records
from rollq_worker.environments.shop.results import show_address, show_customer, show_item, show_order, show_product

CANCEL_REASONS = ("no longer needed", "ordered by mistake")
WRAP_FEE = 450
"""Price of gift wrap in cents. Gold members pay nothing."""
TRANSFER = "transfer_to_human"
"""The tool that hands over to a human, which ends the episode."""

Run = Callable[..., Json]


def call(data: ShopData, name: str, arguments: Mapping[str, Json]) -> str:
    """The tool's result as compact JSON, or "Error: ..."."""
    if (tool := _TOOLS.get(name)) is None:
        return f"Error: there is no tool {shorten(name)}"
    schema, run = tool
    if problem := _problem(arguments, schema["function"]["parameters"]):
        return f"Error: {problem}"
    try:
        return json.dumps(run(data, **arguments), separators=(",", ":"))
    except CallError as error:
        return f"Error: {error}"


def _problem(arguments: Json, parameters: Mapping[str, Json]) -> str | None:
    """What is wrong with the arguments, checked against the schema that the policy was shown."""
    if not isinstance(arguments, Mapping):
        return "the arguments must be an object"
    known: Mapping[str, Json] = parameters["properties"]
    if missing := [name for name in parameters["required"] if name not in arguments]:
        return f"missing argument {', '.join(missing)}"
    for name, value in arguments.items():
        if name not in known:
            return f"unknown argument {shorten(str(name))}"
        if not _fits(value, known[name]):
            return f"argument {name} must be {_expected(known[name])}"
    return None


def _fits(value: Json, schema: Mapping[str, Json]) -> bool:
    if schema["type"] == "array":
        return isinstance(value, list) and bool(value) and all(_fits(part, schema["items"]) for part in value)
    if schema["type"] == "boolean":
        return isinstance(value, bool)
    return isinstance(value, str) and value in schema.get("enum", (value,))


def _expected(schema: Mapping[str, Json]) -> str:
    if schema["type"] == "array":
        return "a list of strings, not empty"
    if schema["type"] == "boolean":
        return "true or false"
    return f"one of {', '.join(map(repr, schema['enum']))}" if "enum" in schema else "a string"


def _text(description: str, *, enum: tuple[str, ...] = ()) -> dict[str, Json]:
    return {"type": "string", "description": description} | ({"enum": list(enum)} if enum else {})


_ORDER_ID = _text("The order's id, such as 'S-48213'.")
_PAYMENT_ID = _text("One of the customer's payment methods, such as 'card-4821'.")
_SWAPPED = {
    "order_id": _ORDER_ID,
    "item_id": _text("The item in the order, such as 'P-24-3'."),
    "new_item_id": _text("The item wanted instead: another variant of the same product that is in stock."),
    "payment_method_id": _PAYMENT_ID,
}


_TOOLS: dict[str, tuple[dict[str, Json], Run]] = {}
"""Schema and function by name, in the order in which the policy is shown them."""


def _tool(description: str, **properties: dict[str, Json]) -> Callable[[Run], Run]:
    """Makes a function the tool with the function's name. All parameters are required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }

    def add(run: Run) -> Run:
        name = run.__name__.removeprefix("_")
        function = {"name": name, "description": description, "parameters": parameters}
        _TOOLS[name] = {"type": "function", "function": function}, run
        return run

    return add


@_tool("Find a customer's id by e-mail address.", email=_text("The e-mail address."))
def _find_customer_by_email(data: ShopData, email: str) -> Json:
    return {"customer_id": data.customer_by_email(email).customer_id}


@_tool(
    "Find a customer's id by name and zip code.",
    first_name=_text("The first name."),
    last_name=_text("The last name."),
    zip=_text("The zip code of the customer's own address, five digits."),
)
def _find_customer_by_name(data: ShopData, first_name: str, last_name: str, zip: str) -> Json:
    return {"customer_id": data.customer_by_name(first_name, last_name, zip).customer_id}


@_tool(
    "Get a customer's profile: address, membership, payment methods and orders.",
    customer_id=_text("The customer's id, such as 'C-4821'."),
)
def _get_customer(data: ShopData, customer_id: str) -> Json:
    customer = data.customer(customer_id)
    return show_customer(customer, [data.order(order_id) for order_id in customer.order_ids])


@_tool("Get an order: status, dates, address, items with prices, total.", order_id=_ORDER_ID)
def _get_order(data: ShopData, order_id: str) -> Json:
    return show_order(data.order(order_id))


@_tool(
    "List the products whose name and category contain all words of a query.",
    query=_text("One or more words, such as 'desk lamp'."),
)
def _search_products(data: ShopData, query: str) -> Json:
    words = query.lower().split()
    if not words:
        raise CallError("the query is empty")
    return [
        {"product_id": product.product_id, "name": product.name, "category": product.category}
        for product in catalogue()
        if all(word in f"{product.name} {product.category}".lower() for word in words)
    ]


@_tool(
    "Get all variants of a product with item ids, prices and stock.",
    product_id=_text("The product's id, such as 'P-24'."),
)
def _get_product(data: ShopData, product_id: str) -> Json:
    if (product := all_records().products.get(product_id)) is None:
        raise CallError(f"there is no product {shorten(product_id)}")
    return show_product(product)


@_tool(
    "Cancel a pending order; what was paid goes back to the order's payment method.",
    order_id=_ORDER_ID,
    reason=_text("Why the customer cancels.", enum=CANCEL_REASONS),
)
def _cancel_order(data: ShopData, order_id: str, reason: str) -> Json:
    order = data.order_in_state(order_id, Status.PENDING)
    settled = (*order.settled, (order.payment_id, -order.total))
    data.change(order, status=Status.CANCELLED, reason=reason, settled=settled)
    return {"order_id": order_id, "status": Status.CANCELLED.value, "refund": money(order.total)} | {
        "payment_method_id": order.payment_id
    }


@_tool(
    "Change where a pending order is sent.",
    order_id=_ORDER_ID,
    street=_text("House number and street."),
    city=_text("The city."),
    state=_text("The state, two letters."),
    zip=_text("The zip code, five digits."),
)
def _change_address(data: ShopData, order_id: str, street: str, city: str, state: str, zip: str) -> Json:
    order = data.order_in_state(order_id, Status.PENDING)
    order = data.change(order, address=Address(street=street, city=city, state=state, zip=zip))
    return {"order_id": order_id, "address": show_address(order.address)}


@_tool(
    "Have a pending order gift-wrapped, or no longer.",
    order_id=_ORDER_ID,
    wrapped={"type": "boolean", "description": "Whether it shall be gift-wrapped."},
)
def _set_gift_wrap(data: ShopData, order_id: str, wrapped: bool) -> Json:
    order = data.order_in_state(order_id, Status.PENDING)
    fee = WRAP_FEE if wrapped and not data.customer(order.customer_id).gold else 0
    order = data.change(order, wrapped=wrapped, wrap_fee=fee)
    return {"order_id": order_id, "gift_wrap": money(fee) if wrapped else None, "total": money(order.total)}


def _swap(
    data: ShopData, order: Order, item_id: str, new_item_id: str, payment_method_id: str, **changes: Any
) -> dict[str, Json]:
    """Replace an item of the order by another variant and settle the difference. Raises CallError."""
    old = next((item for item in order.items if item.item_id == item_id), None)
    if old is None:
        raise CallError(f"order {order.order_id} holds no item {shorten(item_id)}")
    new = data.item(new_item_id)
    if new.product_id != old.product_id:
        raise CallError(f"{new.item_id} is not a variant of the same product as {old.item_id}")
    if new == old or not new.in_stock:
        raise CallError(f"{new.item_id} is {'the item in the order' if new == old else 'sold out'}")
    payment, difference = data.payment_of_owner(order, payment_method_id), new.price - old.price
    items = tuple(new if item == old else item for item in order.items)
    data.change(order, items=items, settled=(*order.settled, (payment, difference)), **changes)
    return {"new_item": show_item(new), "price_difference": money(difference), "payment_method_id": payment}


@_tool("Change one item of a pending order for another variant of its product.", **_SWAPPED)
def _change_item(data: ShopData, order_id: str, item_id: str, new_item_id: str, payment_method_id: str) -> Json:
    order = data.order_in_state(order_id, Status.PENDING)
    return {"order_id": order_id, **_swap(data, order, item_id, new_item_id, payment_method_id)}


@_tool("Exchange one item of a delivered order for another variant of its product.", **_SWAPPED)
def _exchange_item(data: ShopData, order_id: str, item_id: str, new_item_id: str, payment_method_id: str) -> Json:
    order = data.order_in_state(order_id, Status.DELIVERED)
    changes = {"status": Status.EXCHANGE, "sent_back": (item_id,)}
    swapped = _swap(data, order, item_id, new_item_id, payment_method_id, **changes)
    return {"order_id": order_id, "status": Status.EXCHANGE.value, **swapped}


@_tool(
    "Return items of a delivered order for a refund. Possible once per order.",
    order_id=_ORDER_ID,
    item_ids={"type": "array", "items": {"type": "string"}, "description": "All items to be returned."},
    payment_method_id=_text("Where the refund goes: the order's own payment method or a store credit."),
)
def _return_items(data: ShopData, order_id: str, item_ids: list[str], payment_method_id: str) -> Json:
    order = data.order_in_state(order_id, Status.DELIVERED)
    prices = {item.item_id: item.price for item in order.items}
    if unknown := [item_id for item_id in item_ids if item_id not in prices]:
        raise CallError(f"order {order_id} holds no item {shorten(unknown[0])}")
    if len(set(item_ids)) != len(item_ids):
        raise CallError("an item is named twice")
    payment = data.payment_of_owner(order, payment_method_id)
    refund = sum(prices[item_id] for item_id in item_ids)
    settled = (*order.settled, (payment, -refund))
    # Sorted: the order in which the items were named must not decide the reward.
    data.change(order, status=Status.RETURN, sent_back=tuple(sorted(item_ids)), settled=settled)
    return {"order_id": order_id, "status": Status.RETURN.value, "refund": money(refund), "payment_method_id": payment}


@_tool(
    "Work out a sum with numbers, + - * / and parentheses; two decimals.",
    expression=_text("Such as '(129.45 + 17.20) * 2'."),
)
def _calculate(data: ShopData, expression: str) -> Json:
    try:
        return calculator.calculate(expression)
    except ValueError as error:
        raise CallError(str(error)) from None


@_tool(
    "Hand the conversation over to a human agent. It ends here for you.",
    summary=_text("What the customer needs, in one sentence."),
)
def _transfer_to_human(data: ShopData, summary: str) -> Json:
    data.hand_over()
    return "A human agent has taken over."


SCHEMAS = tuple(schema for schema, _ in _TOOLS.values())
"""The schemas of all tools, shared by all episodes and never changed."""
