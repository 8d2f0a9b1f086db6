"""The shop's tools: what a policy gets wrong is an observation, and the data stays sound."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.env import RESPOND, Action
from rollq_worker.environments import shop
from rollq_worker.environments.shop import tools
from rollq_worker.environments.shop.database import ShopData, shared_database
from rollq_worker.environments.shop.records import Status, all_records
from tests.rollq_worker.environments.episodes import begin

DATABASE = shared_database()
ORDER = next(order for order in all_records().orders.values() if order.status is Status.PENDING)
PAID = next(
    order for order in all_records().orders.values() if order.status is Status.DELIVERED and len(order.items) > 1
)


def returning(**changes: object) -> dict[str, object]:
    """Arguments of return_items."""
    item_ids = [PAID.items[0].item_id]
    return {"order_id": PAID.order_id, "item_ids": item_ids, "payment_method_id": PAID.payment_id, **changes}


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("delete_everything", {}, "there is no tool 'delete_everything'"),
        (RESPOND + "s", {"content": "hi"}, "there is no tool"),
        ("get_order", {}, "missing argument order_id"),
        ("get_order", [], "must be an object"),
        ("get_order", {"order_id": ORDER.order_id, "verbose": True}, "unknown argument 'verbose'"),
        ("get_order", {"order_id": None}, "order_id must be a string"),
        ("get_order", {"order_id": "S-1"}, "there is no order 'S-1'"),
        ("get_order", {"order_id": "\ud800" * 100}, "there is no order"),
        ("get_customer", {"customer_id": "C-0"}, "there is no customer 'C-0'"),
        ("find_customer_by_email", {"email": "nobody@example.com"}, "there is no customer with the e-mail"),
        ("find_customer_by_name", {"first_name": "Ida", "last_name": "Ueda", "zip": "1"}, "this name and zip code"),
        ("search_products", {"query": "  "}, "the query is empty"),
        ("get_product", {"product_id": "P-0"}, "there is no product 'P-0'"),
        ("cancel_order", {"order_id": ORDER.order_id, "reason": "dear"}, "reason must be one of 'no longer needed'"),
        ("cancel_order", {"order_id": PAID.order_id, "reason": "no longer needed"}, "is delivered, not pending"),
        ("set_gift_wrap", {"order_id": ORDER.order_id, "wrapped": 1}, "wrapped must be true or false"),
        ("return_items", returning(item_ids=[]), "item_ids must be a list of strings, not empty"),
        ("return_items", returning(item_ids=[1]), "item_ids must be a list of strings"),
        ("return_items", returning(item_ids=["P-0-0"]), "holds no item 'P-0-0'"),
        ("return_items", returning(item_ids=[PAID.items[0].item_id] * 2), "named twice"),
        ("return_items", returning(payment_method_id="card-1"), "has no payment method 'card-1'"),
        ("return_items", returning(order_id=ORDER.order_id), "is pending, not delivered"),
        ("calculate", {"expression": "9**9**9"}, "only numbers"),
    ],
)
def test_mistakes_of_the_policy_are_observations(name: str, arguments: dict[str, object], words: str) -> None:
    observation = begin(shop.load(None)).step(Action(name, arguments))
    assert observation.text.startswith("Error: ") and words in observation.text
    assert len(observation.text.encode()) < 300
    assert not observation.done


def test_swaps_that_cannot_be() -> None:
    order = next(
        order for order in all_records().orders.values() if order.status is Status.PENDING and len(order.items) > 1
    )
    item, other = order.items[:2]
    variants = all_records().products[item.product_id].variants
    arguments = {"order_id": order.order_id, "item_id": item.item_id, "payment_method_id": order.payment_id}

    def said(**changes: str) -> str:
        return tools.call(ShopData(DATABASE.view()), "change_item", {**arguments, **changes})

    assert "is the item in the order" in said(new_item_id=item.item_id)
    assert "is not a variant of the same product" in said(new_item_id=other.item_id)
    assert "there is no item 'P-0-0'" in said(new_item_id="P-0-0")
    assert "holds no item" in said(item_id="P-0-0", new_item_id=item.item_id)
    good = next(one for one in variants if one.in_stock and one != item)
    assert "has no payment method" in said(new_item_id=good.item_id, payment_method_id="cash")
    assert json.loads(said(new_item_id=good.item_id))["new_item"]["item_id"] == good.item_id
    sold_out = next(one for one in all_records().items.values() if not one.in_stock)
    holder = next(
        one
        for one in all_records().orders.values()
        if one.status is Status.PENDING and any(part.product_id == sold_out.product_id for part in one.items)
    )
    part = next(part for part in holder.items if part.product_id == sold_out.product_id)
    arguments = {"order_id": holder.order_id, "item_id": part.item_id, "payment_method_id": holder.payment_id}
    assert "sold out" in said(new_item_id=sold_out.item_id)


def test_an_order_goes_back_once() -> None:
    data = ShopData(DATABASE.view())
    items = [item.item_id for item in PAID.items]
    assert json.loads(tools.call(data, "return_items", returning(item_ids=items)))["status"] == "return requested"
    assert "is return requested, not delivered" in tools.call(data, "return_items", returning(item_ids=items))
    assert "items_sent_back" in tools.call(data, "get_order", {"order_id": PAID.order_id})


def test_the_sequence_of_returned_items_does_not_matter() -> None:
    one, other = DATABASE.view(), DATABASE.view()
    items = [item.item_id for item in PAID.items]
    tools.call(ShopData(one), "return_items", returning(item_ids=items))
    tools.call(ShopData(other), "return_items", returning(item_ids=items[::-1]))
    assert DATABASE.changes(one) == DATABASE.changes(other) != {}


def test_schemas_are_what_openai_takes() -> None:
    assert 10 <= len(tools.SCHEMAS) <= 15
    for schema in json.loads(json.dumps(tools.SCHEMAS)):
        function = schema["function"]
        assert schema["type"] == "function" and function["description"]
        assert set(function["parameters"]["required"]) == set(function["parameters"]["properties"])
        assert all(part["description"] for part in function["parameters"]["properties"].values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(ORDER.order_id),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)
NAMES = [schema["function"]["name"] for schema in tools.SCHEMAS]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_no_call_ever_raises(name: str, data: st.DataObject) -> None:
    schema = next(one["function"]["parameters"] for one in tools.SCHEMAS if one["function"]["name"] == name)
    arguments = data.draw(st.fixed_dictionaries(dict.fromkeys(schema["properties"], JSON)) | JSON)
    text = tools.call(ShopData(DATABASE.view()), name, arguments)
    assert text.startswith("Error: ") or json.loads(text) is not None
    text.encode()
