"""The shop's customers and their orders, before any episode.

Records are frozen and shared by all episodes. The customer of task i of a split is a pure function of (split, i) and
belongs to that task alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from functools import cache
from random import Random
from types import MappingProxyType

from rollq_worker.environments.shop.catalogue import Product, Variant, catalogue

SPLITS: Mapping[str, int] = MappingProxyType({"train": 500, "test": 100, "dev": 20})
TODAY = date(2025, 5, 15)
RETURN_DAYS = 30


class Status(StrEnum):
    """The state of an order."""

    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    RETURN = "return requested"
    EXCHANGE = "exchange requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    street: str
    city: str
    state: str
    zip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    payment_id: str
    kind: str
    """`card` or `store credit`."""
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    customer_id: str
    first_name: str
    last_name: str
    email: str
    gold: bool
    """Gold members pay nothing for gift wrap."""
    address: Address
    payments: tuple[Payment, ...]
    """The card first, then the store credit if there is one."""
    order_ids: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    order_id: str
    customer_id: str
    status: Status
    placed: date
    delivered: date | None
    address: Address
    items: tuple[Variant, ...]
    """The items of the order, each of another product."""
    payment_id: str
    tracking: str
    wrapped: bool = False
    wrap_fee: int = 0
    """Cents."""
    reason: str = ""
    """Why the order was cancelled."""
    sent_back: tuple[str, ...] = ()
    """Item ids that the customer returns or exchanges, sorted."""
    settled: tuple[tuple[str, int], ...] = ()
    """(payment id, cents) of each charge since the order was placed; refunds are negative."""

    @property
    def total(self) -> int:
        """Cents."""
        return sum(item.price for item in self.items) + self.wrap_fee


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Everything by id, and the customer of each task."""

    products: Mapping[str, Product]
    items: Mapping[str, Variant]
    customers: Mapping[str, Customer]
    emails: Mapping[str, str]
    """Customer id by e-mail address in lower case."""
    names: Mapping[tuple[str, str], str]
    """Customer id by first and last name in lower case; no two customers share both."""
    orders: Mapping[str, Order]
    task_customers: Mapping[tuple[str, int], str]
    """Customer id by (split, index)."""


@cache
def all_records() -> Records:
    """All records, the same in every process. They take about 40 ms to build, and are then kept."""
    products = {product.product_id: product for product in catalogue()}
    customers: dict[str, Customer] = {}
    orders: dict[str, Order] = {}
    task_customers: dict[tuple[str, int], str] = {}
    names = [(first, last) for first in _FIRST.split() for last in _LAST.split()]
    Random("shop names").shuffle(names)
    for split, size in SPLITS.items():
        for index in range(size):
            number = len(customers)
            customer = _customer(split, index, number, *names[number])
            customers[customer.customer_id] = customer
            orders.update((order.order_id, order) for order in _orders(split, index, customer))
            task_customers[split, index] = customer.customer_id
    return Records(
        products=products,
        items={item.item_id: item for product in products.values() for item in product.variants},
        customers=customers,
        emails={customer.email: customer.customer_id for customer in customers.values()},
        names={(one.first_name.lower(), one.last_name.lower()): one.customer_id for one in customers.values()},
        orders=orders,
        task_customers=task_customers,
    )


def new_address(random: Random) -> Address:
    """Any address in the shop's country."""
    city, state, prefix = random.choice(_CITIES)
    street = f"{random.randrange(2, 990)} {random.choice(_STREETS)}"
    return Address(street=street, city=city, state=state, zip=f"{prefix}{random.randrange(100):02d}")


def _permuted(number: int, size: int) -> int:
    """A permutation of 0..size-1 without a visible pattern; `size` is not a multiple of 7919."""
    return (number * 7919 + 4801) % size


def _customer(split: str, index: int, number: int, first: str, last: str) -> Customer:
    random = Random(f"shop customer {split} {index}")
    code = 1000 + _permuted(number, 9000)
    label = f"{random.choice(('Visa', 'Mastercard', 'Amex'))} ending in {random.randrange(1000, 9999)}"
    payments = [Payment(payment_id=f"card-{code}", kind="card", label=label)]
    if random.random() < 0.6:
        payments.append(Payment(payment_id=f"credit-{code}", kind="store credit", label="store credit"))
    return Customer(
        customer_id=f"C-{code}",
        first_name=first,
        last_name=last,
        email=f"{first}.{last}@{random.choice(_HOSTS)}".lower(),
        gold=random.random() < 0.3,
        address=new_address(random),
        payments=tuple(payments),
        order_ids=tuple(f"S-{10000 + _permuted(4 * number + place, 90000)}" for place in range(4)),
    )


def _orders(split: str, index: int, customer: Customer) -> list[Order]:
    """Four orders in random sequence: two pending, one delivered lately, one delivered too long ago to go back.

    No product occurs twice among them, so a customer may say "the order with the desk lamp".
    """
    random = Random(f"shop orders {split} {index}")
    regular = [product for product in catalogue() if not product.final_sale]
    random.shuffle(regular)
    outlet = random.choice([product for product in catalogue() if product.final_sale])
    found: list[Order] = []
    lately, long_ago = random.randrange(2, 26), random.randrange(45, 200)
    ages = [("pending", 0), ("pending", 0), ("lately", lately), ("long ago", long_ago)]
    random.shuffle(ages)
    for order_id, (age, days) in zip(customer.order_ids, ages, strict=True):
        chosen = [regular.pop() for _ in range(random.choice((1, 2, 2, 3)) if age != "lately" else 2)]
        if age == "lately" and random.random() < 0.5:
            chosen.append(outlet)
        delivered = TODAY - timedelta(days=days) if age != "pending" else None
        found.append(
            Order(
                order_id=order_id,
                customer_id=customer.customer_id,
                status=Status.DELIVERED if delivered else Status.PENDING,
                placed=(delivered or TODAY) - timedelta(days=random.randrange(2, 6)),
                delivered=delivered,
                address=customer.address,
                items=tuple(random.choice([item for item in product.variants if item.in_stock]) for product in chosen),
                payment_id=customer.payments[0].payment_id,
                tracking=f"T{random.randrange(10**7, 10**8)}",
            )
        )
    return found


_FIRST = (
    "Ada Amara Ana Anton Astrid Bela Bruno Carla Chidi Clara Dario Dina Elif Emil Esther Farid Felix Freya Gita "
    "Hana Hugo Ida Ines Ivan Jana Jonas Kai Kofi Lena Leo Lucia Malik Mara Milan Mina Nadia Nils Noor Olga Omar "
    "Paula Petra Priya Quinn Rafael Rosa Samir Selma Tara Theo Uma Vera Viktor Wanda Yara Yusuf Zoe"
)
_LAST = (
    "Abara Achterberg Almeida Bauer Bergman Castillo Chandra Daly Dumont Eriksen Falk Ferreira Gallo Haddad Hansen "
    "Ibarra Ito Jansen Kaya Keller Kowalski Laurent Lind Marino Mbeki Moreau Nagy Novak Okafor Olsen Park Petrov "
    "Quist Ramos Reyes Rossi Sato Silva Tanaka Toth Ueda Vance Vargas Weber Wolff Yilmaz Zeman"
)
_HOSTS = ("example.com", "example.org", "example.net", "mail.example.com")
_STREETS = ("Maple Street", "Harbor Road", "Mill Lane", "Cedar Avenue", "Station Road", "Park Row", "Lake Drive")
_CITIES = (
    ("Portland", "OR", "972"),
    ("Austin", "TX", "787"),
    ("Denver", "CO", "802"),
    ("Madison", "WI", "537"),
    ("Boston", "MA", "021"),
    ("Tucson", "AZ", "857"),
    ("Atlanta", "GA", "303"),
    ("Seattle", "WA", "981"),
)
