"""The shop's products, customers and orders before an episode, as the tools show them.

They are made from fixed seeds, the same in every process. The customer of task i of a split is a
pure function of (split, i) and belongs to that task alone. Amounts of money are text with two
decimals.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from functools import cache
from itertools import product as combinations
from random import Random

from rollq.job import Json

SPLITS: Mapping[str, int] = {"train": 500, "test": 100, "dev": 20}
TODAY = date(2025, 5, 15)
RETURN_DAYS = 30
PENDING, DELIVERED = "pending", "delivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Everything by id. Shared by all episodes, and never changed."""

    products: Mapping[str, Json]
    customers: Mapping[str, Json]
    ids_by_email: Mapping[str, str]
    """Customer ids by e-mail address in lower case, one each."""
    ids_by_name: Mapping[str, str]
    """Customer ids by name in lower case, one each."""
    orders: Mapping[str, Json]
    task_customers: Mapping[tuple[str, int], str]
    """Customer id by (split, index)."""


@cache
def records() -> Records:
    products = {product["product_id"]: product for product in map(_product, range(len(_RANGE)))}
    customers: dict[str, Json] = {}
    orders: dict[str, Json] = {}
    task_customers: dict[tuple[str, int], str] = {}
    names = [f"{first} {last}" for first in _FIRST.split() for last in _LAST.split()]
    Random("shop names").shuffle(names)
    for split, size in SPLITS.items():
        for index in range(size):
            customer = _customer(len(customers), names[len(customers)])
            customers[customer["customer_id"]] = customer
            for order in _orders(customer, list(products.values())):
                orders[order["order_id"]] = order
            task_customers[split, index] = customer["customer_id"]
    return Records(
        products=products,
        customers=customers,
        ids_by_email={customer["email"].lower(): id for id, customer in customers.items()},
        ids_by_name={customer["name"].lower(): id for id, customer in customers.items()},
        orders=orders,
        task_customers=task_customers,
    )


def items_total(items: Iterable[Json]) -> Decimal:
    """The price of these items together."""
    return sum((Decimal(item["price"]) for item in items), Decimal("0.00"))


def bought(product: Json, item: Json) -> dict[str, Json]:
    """An item of a product as orders hold it."""
    about = {"product_id": product["product_id"], "name": product["name"]}
    return {"item_id": item["item_id"], **about, "options": item["options"], "price": item["price"]}


def new_address(random: Random) -> dict[str, str]:
    city, state, prefix = random.choice(_CITIES)
    street = f"{random.randrange(2, 990)} {random.choice(_STREETS)}"
    return {
        "street": street,
        "city": city,
        "state": state,
        "zip": f"{prefix}{random.randrange(100):02d}",
    }


def _product(index: int) -> dict[str, Json]:
    """A product. Its variants cost differently, and at most one of them is sold out."""
    name, category, dollars, options = _RANGE[index]
    random = Random(f"shop product {index}")
    product_id = f"P-{index * 7 % 89 + 10}"
    choices = list(combinations(*options.values()))
    sold_out = random.randrange(len(choices) * 2)
    items = [
        {
            "item_id": f"{product_id}-{place + 1}",
            "options": dict(zip(options, choice, strict=True)),
            "price": f"{dollars + place * max(2, dollars // 12)}.{random.randrange(100):02d}",
            "in_stock": place != sold_out,
        }
        for place, choice in enumerate(choices)
    ]
    return {"product_id": product_id, "name": name, "category": category, "items": items}


def _customer(number: int, name: str) -> dict[str, Json]:
    random = Random(f"shop customer {number}")
    code = 1000 + _permuted(number, 9000)
    payments = {
        f"card-{code}": f"{random.choice(('Visa', 'Mastercard'))} ending in "
        f"{random.randrange(1000, 9999)}"
    }
    if random.random() < 0.6:
        payments[f"credit-{code}"] = "store credit"
    return {
        "customer_id": f"C-{code}",
        "name": name,
        "email": f"{name.replace(' ', '.')}@{random.choice(_MAIL_HOSTS)}".lower(),
        "gold_member": random.random() < 0.3,
        "address": new_address(random),
        "payment_methods": payments,
        "orders": [f"S-{10000 + _permuted(4 * number + place, 90000)}" for place in range(4)],
    }


def _orders(customer: Json, products: list[Json]) -> Iterable[Json]:
    """Four orders in random sequence: two pending, one delivered lately, one delivered too long ago
    to go back.

    No product occurs twice among them, so a customer may say "the order with the desk lamp".
    """
    random = Random(f"shop orders {customer['customer_id']}")
    random.shuffle(products)
    ages = [None, None, random.randrange(2, 26), random.randrange(45, 200)]
    random.shuffle(ages)
    for order_id, age in zip(customer["orders"], ages, strict=True):
        chosen = [products.pop() for _ in range(random.choice((1, 2, 2, 3)))]
        items = []
        for product in chosen:
            in_stock = [item for item in product["items"] if item["in_stock"]]
            items.append(bought(product, random.choice(in_stock)))
        delivered = None if age is None else TODAY - timedelta(days=age)
        yield {
            "order_id": order_id,
            "customer_id": customer["customer_id"],
            "status": PENDING if age is None else DELIVERED,
            "placed": ((delivered or TODAY) - timedelta(days=random.randrange(2, 6))).isoformat(),
            "delivered": delivered and delivered.isoformat(),
            "tracking": f"T{random.randrange(10**7, 10**8)}",
            "address": customer["address"],
            "items": items,
            "gift_wrap": None,
            "total": str(items_total(items)),
            "payment_method_id": next(iter(customer["payment_methods"])),
        }


def _permuted(number: int, size: int) -> int:
    """A permutation of 0..size-1 without a visible pattern; `size` is not a multiple of 7919."""
    return (number * 7919 + 4801) % size


_RANGE: tuple[tuple[str, str, int, dict[str, tuple[str, ...]]], ...] = (
    (
        "Trail Backpack",
        "outdoor",
        74,
        {"colour": ("green", "grey", "orange"), "volume": ("20 l", "30 l")},
    ),
    ("Camping Stove", "outdoor", 52, {"fuel": ("gas", "spirit"), "burners": ("one", "two")}),
    (
        "Sleeping Bag",
        "outdoor",
        118,
        {"season": ("summer", "winter"), "side": ("left zip", "right zip")},
    ),
    ("Rain Jacket", "clothing", 96, {"colour": ("blue", "red"), "size": ("S", "M", "L")}),
    ("Running Shoes", "clothing", 109, {"colour": ("black", "white"), "size": ("8", "9", "10")}),
    ("Desk Lamp", "home", 44, {"colour": ("black", "brass"), "base": ("clamp", "stand")}),
    ("Bookshelf", "home", 137, {"wood": ("oak", "walnut"), "shelves": ("three", "five")}),
    ("Wall Clock", "home", 39, {"face": ("white", "black"), "diameter": ("25 cm", "35 cm")}),
    (
        "Espresso Maker",
        "kitchen",
        148,
        {"colour": ("steel", "red"), "pressure": ("9 bar", "15 bar")},
    ),
    ("Chef Knife", "kitchen", 67, {"blade": ("15 cm", "20 cm"), "handle": ("wood", "resin")}),
    ("Water Kettle", "kitchen", 41, {"colour": ("steel", "white"), "volume": ("1 l", "1.7 l")}),
    (
        "Wireless Headphones",
        "electronics",
        163,
        {"colour": ("black", "silver"), "fit": ("on ear", "over ear")},
    ),
    (
        "Mechanical Keyboard",
        "electronics",
        112,
        {"keys": ("linear", "tactile"), "layout": ("full", "small")},
    ),
    ("E-Reader", "electronics", 129, {"storage": ("8 GB", "32 GB"), "colour": ("black", "white")}),
    ("Chess Set", "games", 61, {"wood": ("maple", "rosewood"), "board": ("folding", "solid")}),
    ("Yoga Mat", "sports", 36, {"colour": ("plum", "sand"), "thickness": ("4 mm", "6 mm")}),
)
_MAIL_HOSTS = ("example.com", "example.org")
_FIRST = (
    "Ada Amara Anton Bela Carla Chidi Dina Elif Emil Farid Freya Hana Hugo Ines Ivan Kofi "
    "Lena Malik Mina Noor Omar"
)
_LAST = (
    "Abara Almeida Bauer Castillo Chandra Daly Eriksen Falk Gallo Haddad Ibarra Jansen Kaya Keller "
    "Laurent Lind Marino Mbeki Nagy Novak Okafor Olsen Park Petrov Quist Ramos Sato Silva Tanaka "
    "Ueda Vargas Weber"
)
_STREETS = (
    "Maple Street",
    "Harbor Road",
    "Mill Lane",
    "Cedar Avenue",
    "Station Road",
    "Park Row",
    "Lake Drive",
)
_CITIES = (
    ("Portland", "OR", "972"),
    ("Austin", "TX", "787"),
    ("Denver", "CO", "802"),
    ("Boston", "MA", "021"),
)
