"""The shop's data as one episode sees it.

Orders change in a copy-on-write view; customers and products never change. Records are frozen, so a change replaces a
record. It knows nothing of tools or tasks.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from rollq.env.copy_on_write import SharedDatabase, View
from rollq_worker.environments.shop.catalogue import Variant
from rollq_worker.environments.shop.records import Customer, Order, Status, all_records

HANDED_OVER = "handed over"


class CallError(Exception):
    """A tool call that cannot be carried out, in words for the policy."""


@cache
def shared_database() -> SharedDatabase:
    """The data that every episode starts from. It includes whether a human agent has taken over, because that is
    graded."""
    tables = {"orders": all_records().orders, "conversation": {HANDED_OVER: False}}
    return SharedDatabase(tables, copy=lambda record: record, canon=repr, name=lambda _, key: key)


class ShopData:
    """Reads and changes one episode's view. Its methods raise CallError."""

    __slots__ = ("_view",)

    def __init__(self, view: View) -> None:
        self._view = view

    @property
    def handed_over(self) -> bool:
        return bool(self._view["conversation"][HANDED_OVER])

    def hand_over(self) -> None:
        self._view["conversation"][HANDED_OVER] = True

    def order(self, order_id: str) -> Order:
        found: Order | None = self._view["orders"].get(order_id)
        if found is None:
            raise CallError(f"there is no order {shorten(order_id)}")
        return found

    def order_in_state(self, order_id: str, status: Status) -> Order:
        order = self.order(order_id)
        if order.status is not status:
            raise CallError(f"order {order_id} is {order.status}, not {status}")
        return order

    def change(self, order: Order, **changes: Any) -> Order:
        """Replace fields of an order."""
        self._view["orders"][order.order_id] = changed = replace(order, **changes)
        return changed

    def customer(self, customer_id: str) -> Customer:
        if (found := all_records().customers.get(customer_id)) is None:
            raise CallError(f"there is no customer {shorten(customer_id)}")
        return found

    def customer_by_email(self, email: str) -> Customer:
        if (customer_id := all_records().emails.get(email.strip().lower())) is None:
            raise CallError(f"there is no customer with the e-mail address {shorten(email)}")
        return all_records().customers[customer_id]

    def customer_by_name(self, first_name: str, last_name: str, zip_code: str) -> Customer:
        customer_id = all_records().names.get((first_name.strip().lower(), last_name.strip().lower()))
        if customer_id is None or all_records().customers[customer_id].address.zip != zip_code.strip():
            raise CallError("there is no customer with this name and zip code")
        return all_records().customers[customer_id]

    def item(self, item_id: str) -> Variant:
        if (found := all_records().items.get(item_id)) is None:
            raise CallError(f"there is no item {shorten(item_id)}")
        return found

    def payment_of_owner(self, order: Order, payment_id: str) -> str:
        """The payment method, if the order's customer has it."""
        if payment_id not in [payment.payment_id for payment in self.customer(order.customer_id).payments]:
            raise CallError(f"the customer of order {order.order_id} has no payment method {shorten(payment_id)}")
        return payment_id


def shorten(text: str) -> str:
    """The value as quoted, plain ASCII text of limited length, because the policy may have sampled a very long one."""
    shown = ascii(text[:80])
    return shown if len(text) <= 80 and len(shown) <= 80 else f"{shown[:80]}..."
