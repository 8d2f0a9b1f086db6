"""The shop's tools: what a policy gets wrong is an observation, and the data stays sound."""

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.env import RESPOND, Action
from rollq_worker.environments import shop
from rollq_worker.environments.shop import tools
from rollq_worker.environments.shop.records import DELIVERED, PENDING, records
from tests.rollq_worker.environments.episodes import begin

DATABASE = tools.shared_database()
ORDERS = records().orders.values()
ORDER = next(order for order in ORDERS if order["status"] == PENDING)
PAID = next(order for order in ORDERS if order["status"] == DELIVERED and len(order["items"]) > 1)
ITEMS = [item["item_id"] for item in PAID["items"]]


def returning(**changes: object) -> dict[str, object]:
    """Arguments of return_items."""
    chosen = {name: PAID[name] for name in ("order_id", "payment_method_id")}
    return {**chosen, "item_ids": ITEMS[:1], **changes}


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("delete_everything", {}, "there is no tool 'delete_everything'"),
        (RESPOND + "s", {"content": "hi"}, "there is no tool"),
        ("get_order", {}, "missing argument order_id"),
        ("get_order", [], "must be an object"),
        (
            "get_order",
            {"order_id": ORDER["order_id"], "verbose": True},
            "unknown argument 'verbose'",
        ),
        ("get_order", {"order_id": None}, "order_id must be a string"),
        ("get_order", {"order_id": "S-1"}, "there is no order 'S-1'"),
        ("get_order", {"order_id": "\ud800" * 100}, "there is no order"),
        ("get_customer", {"customer_id": "C-0"}, "there is no customer 'C-0'"),
        (
            "find_customer_by_email",
            {"email": "nobody@example.com"},
            "there is no customer with the e-mail",
        ),
        ("find_customer_by_name", {"name": "Ada Ueda", "zip": "1"}, "this name and zip code"),
        ("get_product", {"product_id": "P-0"}, "there is no product 'P-0'"),
        (
            "cancel_order",
            {"order_id": ORDER["order_id"], "reason": "dear"},
            "reason must be one of 'no longer needed'",
        ),
        (
            "cancel_order",
            {"order_id": PAID["order_id"], "reason": "no longer needed"},
            "is delivered, not pending",
        ),
        (
            "set_gift_wrap",
            {"order_id": ORDER["order_id"], "wrapped": 1},
            "wrapped must be true or false",
        ),
        ("return_items", returning(item_ids=[]), "item_ids must be a list of strings, not empty"),
        ("return_items", returning(item_ids=[1]), "item_ids must be a list of strings"),
        ("return_items", returning(item_ids=["P-0-0"]), "holds no item 'P-0-0'"),
        ("return_items", returning(item_ids=ITEMS[:1] * 2), "named twice"),
        ("return_items", returning(payment_method_id="card-1"), "has no payment method 'card-1'"),
        ("return_items", returning(order_id=ORDER["order_id"]), "is pending, not delivered"),
        ("calculate", {"expression": "9**9**9"}, "only numbers"),
    ],
)
def test_mistakes_of_the_policy_are_observations(
    name: str, arguments: dict[str, object], words: str
) -> None:
    observation = begin(shop.load(None)).step(Action(name, arguments))
    assert observation.text.startswith("Error: ") and words in observation.text
    assert len(observation.text.encode()) < 300
    assert not observation.done


def test_a_customer_is_found_by_the_address_or_by_name_and_zip_code() -> None:
    customer = records().customers[ORDER["customer_id"]]
    name, email, zip = customer["name"], customer["email"], customer["address"]["zip"]

    def is_found(tool: str, **arguments: str) -> bool:
        text = tools.call(DATABASE.view(), tool, arguments)
        return text == json.dumps({"customer_id": customer["customer_id"]}, separators=(",", ":"))

    assert is_found("find_customer_by_email", email=f" {email.upper()} ")
    assert is_found("find_customer_by_name", name=name.upper(), zip=zip)
    assert not is_found("find_customer_by_email", email=name)
    assert not is_found("find_customer_by_name", name=email, zip=zip)
    assert not is_found("find_customer_by_name", name=name, zip="00000")


def test_changes_that_cannot_be() -> None:
    order = next(one for one in ORDERS if one["status"] == PENDING and len(one["items"]) > 1)
    item, other = (part["item_id"] for part in order["items"][:2])
    chosen = {
        "order_id": order["order_id"],
        "item_id": item,
        "payment_method_id": order["payment_method_id"],
    }

    def said(**changes: str) -> str:
        return tools.call(DATABASE.view(), "change_item", {**chosen, **changes})

    assert "is the item in the order" in said(new_item_id=item)
    assert "is not a variant of the same product" in said(new_item_id=other)
    assert "holds no item" in said(item_id="P-0-0", new_item_id=item)
    variants = records().products[order["items"][0]["product_id"]]["items"]
    good = next(one["item_id"] for one in variants if one["in_stock"] and one["item_id"] != item)
    assert "has no payment method" in said(new_item_id=good, payment_method_id="cash")
    assert json.loads(said(new_item_id=good))["new_item"]["item_id"] == good
    for holder in (one for one in ORDERS if one["status"] == PENDING):
        part = holder["items"][0]
        for gone in (
            one for one in records().products[part["product_id"]]["items"] if not one["in_stock"]
        ):
            chosen |= {"order_id": holder["order_id"], "item_id": part["item_id"]}
            assert "sold out" in said(new_item_id=gone["item_id"])
            return
    raise AssertionError("nothing is sold out")


def test_an_order_goes_back_once() -> None:
    data = DATABASE.view()
    assert (
        json.loads(tools.call(data, "return_items", returning(item_ids=ITEMS)))["status"]
        == "return requested"
    )
    assert "is return requested, not delivered" in tools.call(
        data, "return_items", returning(item_ids=ITEMS)
    )
    order = json.loads(tools.call(data, "get_order", {"order_id": PAID["order_id"]}))
    refund = {"payment_method_id": PAID["payment_method_id"], "amount": f"-{PAID['total']}"}
    assert (order["items_sent_back"], order["settled"]) == (sorted(ITEMS), [refund])


def test_what_changes_cost() -> None:
    fees = set()
    for order in (one for one in list(ORDERS)[:40] if one["status"] == PENDING):
        data, wrap = DATABASE.view(), {"order_id": order["order_id"], "wrapped": True}
        wrapped = json.loads(tools.call(data, "set_gift_wrap", wrap))
        fees.add(wrapped["gift_wrap"])
        assert Decimal(wrapped["total"]) == Decimal(order["total"]) + Decimal(wrapped["gift_wrap"])
        cancel = {"order_id": order["order_id"], "reason": tools.CANCEL_REASONS[0]}
        assert json.loads(tools.call(data, "cancel_order", cancel))["refund"] == wrapped["total"]
        settled = json.loads(tools.call(data, "get_order", {"order_id": order["order_id"]}))[
            "settled"
        ]
        assert [one["amount"] for one in settled] == [f"-{wrapped['total']}"]
    assert fees == {"0.00", tools.WRAP_FEE}  # nothing for gold members


def test_the_sequence_of_returned_items_does_not_matter() -> None:
    one, other = DATABASE.view(), DATABASE.view()
    tools.call(one, "return_items", returning(item_ids=ITEMS))
    tools.call(other, "return_items", returning(item_ids=ITEMS[::-1]))
    assert DATABASE.changes(one) == DATABASE.changes(other) != {}


def test_schemas_are_what_openai_takes() -> None:
    assert 10 <= len(tools.SCHEMAS) <= 15
    for schema in json.loads(json.dumps(tools.SCHEMAS)):
        function = schema["function"]
        assert schema["type"] == "function" and function["description"]
        assert set(function["parameters"]["required"]) == set(function["parameters"]["properties"])
        assert all(part["description"] for part in function["parameters"]["properties"].values())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.just(ORDER["order_id"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = [schema["function"]["name"] for schema in tools.SCHEMAS]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_no_call_ever_raises(name: str, data: st.DataObject) -> None:
    schema = next(
        one["function"]["parameters"] for one in tools.SCHEMAS if one["function"]["name"] == name
    )
    arguments = data.draw(st.fixed_dictionaries(dict.fromkeys(schema["properties"], JSON)) | JSON)
    text = tools.call(DATABASE.view(), name, arguments)
    assert text.startswith("Error: ") or json.loads(text) is not None
    text.encode()
