"""The shop's data as one episode sees it: the shared world under a layer of what the episode has replaced.

Records are frozen, so opening and comparing cost what was changed, not what there is. It knows nothing of tools or
tasks.
"""

from dataclasses import replace
from typing import Any

from rollq_worker.environments.shop.catalogue import Variant, money
from rollq_worker.environments.shop.records import Address, Customer, Order, Status, World, world


class Refused(Exception):
    """A call cannot be carried out, said in words for the policy. It never leaves the environment."""


class Database:
    """One episode's view. Not shared between threads."""

    __slots__ = ("_changed", "_world", "handed_over")

    def __init__(self) -> None:
        self._world: World = world()
        self._changed: dict[str, Order] = {}
        self.handed_over = False
        """A human agent has taken over; part of what is graded."""

    def order(self, order_id: str) -> Order:
        """Raises Refused."""
        if (found := self._changed.get(order_id) or self._world.orders.get(order_id)) is None:
            raise Refused(f"there is no order {shorten(order_id)}")
        return found

    def change(self, order: Order, **changes: Any) -> Order:
        """Replace fields of an order."""
        self._changed[order.order_id] = changed = replace(order, **changes)
        return changed

    def customer(self, customer_id: str) -> Customer:
        """Raises Refused."""
        if (found := self._world.customers.get(customer_id)) is None:
            raise Refused(f"there is no customer {shorten(customer_id)}")
        return found

    def by_email(self, email: str) -> Customer:
        """Raises Refused."""
        if (customer_id := self._world.emails.get(email.strip().lower())) is None:
            raise Refused(f"there is no customer with the e-mail address {shorten(email)}")
        return self._world.customers[customer_id]

    def by_name(self, first_name: str, last_name: str, zip_code: str) -> Customer:
        """Raises Refused."""
        customer_id = self._world.names.get((first_name.strip().lower(), last_name.strip().lower()))
        if customer_id is None or self._world.customers[customer_id].address.zip != zip_code.strip():
            raise Refused("there is no customer with this name and zip code")
        return self._world.customers[customer_id]

    def item(self, item_id: str) -> Variant:
        """Raises Refused."""
        if (found := self._world.items.get(item_id)) is None:
            raise Refused(f"there is no item {shorten(item_id)}")
        return found

    def owner_pays_with(self, order: Order, payment_id: str) -> str:
        """The payment method, if the order's customer has it. Raises Refused."""
        if payment_id not in [payment.payment_id for payment in self.customer(order.customer_id).payments]:
            raise Refused(f"the customer of order {order.order_id} has no payment method {shorten(payment_id)}")
        return payment_id

    def differences(self, other: "Database") -> list[str]:
        """What is not the same in both, by name; sorted. A change that was taken back is none."""
        orders = self._changed.keys() | other._changed.keys()
        found = [order_id for order_id in orders if self.order(order_id) != other.order(order_id)]
        return sorted(found) + (["handed over"] if self.handed_over != other.handed_over else [])


def shorten(text: str) -> str:
    """Quoted, plain ASCII, and short enough to be shown to the policy that may have sampled a novel."""
    shown = ascii(text[:80])
    return shown if len(text) <= 80 and len(shown) <= 80 else f"{shown[:80]}..."


def require(order: Order, status: Status) -> None:
    """Raises Refused unless the order is in that state."""
    if order.status is not status:
        raise Refused(f"order {order.order_id} is {order.status}, not {status}")


def show_address(address: Address) -> dict[str, Any]:
    return {"street": address.street, "city": address.city, "state": address.state, "zip": address.zip}


def show_item(item: Variant) -> dict[str, Any]:
    return {"item_id": item.item_id, "product_id": item.product_id, "name": item.name} | {
        "options": dict(item.options),
        "price": money(item.price),
    }


def show_order(order: Order) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "order_id": order.order_id,
        "customer_id": order.customer_id,
        "status": order.status.value,
        "placed": order.placed.isoformat(),
    }
    if order.delivered:
        shown["delivered"] = order.delivered.isoformat()
    shown |= {
        "tracking": order.tracking,
        "address": show_address(order.address),
        "items": [show_item(item) for item in order.items],
        "gift_wrap": money(order.wrap_fee) if order.wrapped else None,
        "total": money(order.total),
        "payment_method_id": order.payment_id,
    }
    if order.reason:
        shown["cancelled_because"] = order.reason
    if order.sent_back:
        shown["items_sent_back"] = list(order.sent_back)
    if order.settled:
        shown["settled"] = [{"payment_method_id": payment, "amount": money(cents)} for payment, cents in order.settled]
    return shown
