"""The shop's records as tool results: JSON, with amounts of money as text."""

from rollq.job import Json
from rollq_worker.environments.shop.catalogue import Product, Variant, money
from rollq_worker.environments.shop.records import Address, Customer, Order


def show_customer(customer: Customer, orders: list[Order]) -> dict[str, Json]:
    return {
        "customer_id": customer.customer_id,
        "name": customer.name,
        "email": customer.email,
        "gold_member": customer.gold,
        "address": show_address(customer.address),
        "payment_methods": {payment.payment_id: payment.label for payment in customer.payments},
        "orders": [
            {"order_id": order.order_id, "status": order.status.value, "items": [item.name for item in order.items]}
            for order in orders
        ],
    }


def show_product(product: Product) -> dict[str, Json]:
    return {
        "product_id": product.product_id,
        "name": product.name,
        "category": product.category,
        "final_sale": product.final_sale,
        "items": [
            {"item_id": item.item_id, "options": dict(item.options)}
            | {"price": money(item.price), "in_stock": item.in_stock}
            for item in product.variants
        ],
    }


def show_address(address: Address) -> dict[str, Json]:
    return {"street": address.street, "city": address.city, "state": address.state, "zip": address.zip}


def show_item(item: Variant) -> dict[str, Json]:
    return {"item_id": item.item_id, "product_id": item.product_id, "name": item.name} | {
        "options": dict(item.options),
        "price": money(item.price),
    }


def show_order(order: Order) -> dict[str, Json]:
    shown: dict[str, Json] = {
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
