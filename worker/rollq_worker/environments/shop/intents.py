"""What a customer may want: one function for each kind. Each gives both sides of the conversation and the calls to
make.

An intent concerns at most one order, as it is before the episode. So intents about different orders combine freely.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from rollq.env import Action
from rollq_worker.environments.shop.catalogue import Variant, catalogue, money
from rollq_worker.environments.shop.records import RETURN_DAYS, Customer, Order, all_records, new_address
from rollq_worker.environments.shop.tools import CANCEL_REASONS, TRANSFER, WRAP_FEE


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One request of a customer. It is carried out (`writes`), answered (no writes), refused (`plea`) or handed over
    (TRANSFER)."""

    want: str
    """What the customer wants; the text follows "I would like to"."""
    question: str
    """The agent's next question."""
    details: str
    """The customer's answer to it."""
    instruction: str
    """The request as an instruction for a simulated customer."""
    reads: tuple[Action, ...] = ()
    proposal: str = ""
    """What the agent is about to do; "Shall I go ahead?" follows."""
    writes: tuple[Action, ...] = ()
    result: str = ""
    """What the agent says at the end; it contains the outputs."""
    plea: str = ""
    """The customer's answer to a refusal."""
    outputs: tuple[str, ...] = ()


PLEAD = "If the agent refuses, you ask once for an exception, then you give in."
PLEA = "Can you not make an exception, just this once?"


def cancel(random: Random, customer: Customer, order: Order) -> Intent:
    which, reads = _mention(random, customer, order)
    place = random.randrange(len(CANCEL_REASONS))
    reason, why = CANCEL_REASONS[place], ("I no longer need it", "I ordered it by mistake")[place]
    refund = money(order.total)
    return Intent(
        want="cancel an order",
        question="Which order should be cancelled, and for what reason?",
        details=f"It is {which}, and {why}. Please tell me how much I get back.",
        instruction=f"You want to cancel {which} because {why.replace('I ', 'you ')}. You want to know the refund.",
        reads=reads,
        proposal=f"I would cancel order {order.order_id} ({_list(order.items)}) as {reason} and refund {refund}.",
        writes=(Action("cancel_order", {"order_id": order.order_id, "reason": reason}),),
        result=f"Order {order.order_id} is cancelled. Your refund is ${refund}.",
        outputs=(refund,),
    )


def change_address(random: Random, customer: Customer, order: Order) -> Intent:
    which, reads = _mention(random, customer, order)
    new = new_address(random)
    while new == order.address:
        new = new_address(random)
    text = f"{new.street}, {new.city}, {new.state} {new.zip}"
    arguments = {"street": new.street, "city": new.city, "state": new.state, "zip": new.zip}
    return Intent(
        want="have an order sent to another address",
        question="Which order is it, and what is the new address?",
        details=f"It is {which}. Please send it to {text}.",
        instruction=f"You want {which} to be sent to {text}.",
        reads=reads,
        proposal=f"I would send order {order.order_id} to {text}, at no cost.",
        writes=(Action("change_address", {"order_id": order.order_id, **arguments}),),
        result=f"Order {order.order_id} will now go to {text}.",
    )


def gift_wrap(random: Random, customer: Customer, order: Order) -> Intent:
    which, reads = _mention(random, customer, order)
    fee = 0 if customer.gold else WRAP_FEE
    total = money(order.total + fee)
    cost = "free for you as a gold member" if customer.gold else f"${money(fee)}"
    return Intent(
        want="have an order gift-wrapped",
        question="Which order should be gift-wrapped?",
        details=f"{which[0].upper()}{which[1:]}. What does the order come to with it?",
        instruction=f"You want {which} to be gift-wrapped and want to know what the order comes to then, in figures.",
        reads=(*reads, _get_customer(customer)),
        proposal=f"I would have order {order.order_id} gift-wrapped, which is {cost}.",
        writes=(Action("set_gift_wrap", {"order_id": order.order_id, "wrapped": True}),),
        result=f"Order {order.order_id} will be gift-wrapped. It comes to ${total}.",
        outputs=(total,),
    )


def change_item(random: Random, customer: Customer, order: Order) -> Intent:
    return _swap(random, customer, order, "change_item", "change an item of an order")


def exchange_item(random: Random, customer: Customer, order: Order) -> Intent:
    return _swap(random, customer, order, "exchange_item", "exchange something I have received")


def return_items(random: Random, customer: Customer, order: Order) -> Intent:
    allowed = _returnable(order)
    items = random.sample(allowed, random.randint(1, len(allowed)))
    which, reads = _mention(random, customer, order, *items)
    payment = random.choice(customer.payments)
    refund = money(sum(item.price for item in items))
    if len(items) > 1:
        reads = (*reads, Action("calculate", {"expression": " + ".join(money(item.price) for item in items)}))
    names = " and ".join(item.name for item in items)
    arguments = {
        "order_id": order.order_id,
        "item_ids": [item.item_id for item in items],
        "payment_method_id": payment.payment_id,
    }
    return Intent(
        want="return something",
        question="Which items of which order should go back, and where should the refund go?",
        details=f"The {names} of {which}. I want the money on my {payment.label}. How much will it be?",
        instruction=f"You want to return the {names} of {which}, with the refund to your {payment.label}. "
        "You want to know the refund.",
        reads=(*reads, _get_customer(customer)),
        proposal=f"I would take back: {_list(items)}. The refund to your {payment.label} would be {refund}.",
        writes=(Action("return_items", arguments),),
        result=f"The return is arranged. You will get ${refund} on your {payment.label}.",
        outputs=(refund,),
    )


def ask_tracking(random: Random, customer: Customer, order: Order) -> Intent:
    which, reads = _mention(random, customer, order)
    return Intent(
        want="know the tracking number of an order",
        question="Which order is it?",
        details=f"I mean {which}.",
        instruction=f"You want to know the tracking number of {which}.",
        reads=reads,
        result=f"The tracking number of order {order.order_id} is {order.tracking}.",
        outputs=(order.tracking,),
    )


def ask_price(random: Random, customer: Customer, order: Order) -> Intent:
    product = random.choice(catalogue())
    cheapest = min((item for item in product.variants if item.in_stock), key=lambda item: item.price)
    return Intent(
        want="know a price before I buy something else",
        question="Which product are you interested in?",
        details=f"The {product.name}. What is the price of the cheapest one that is in stock?",
        instruction=f"You want to know the price of the cheapest {product.name} that is in stock, in figures.",
        reads=(
            Action("search_products", {"query": product.name.lower()}),
            Action("get_product", {"product_id": product.product_id}),
        ),
        result=f"The cheapest one in stock is the {cheapest.described} at ${money(cheapest.price)}.",
        outputs=(money(cheapest.price),),
    )


def late_return(random: Random, customer: Customer, order: Order) -> Intent:
    item = random.choice(order.items)
    which, reads = _mention(random, customer, order, item)
    return Intent(
        want="return something",
        question="Which items of which order should go back?",
        details=f"The {item.name} of {which}, please.",
        instruction=f"You want to return the {item.name} of {which}. {PLEAD}",
        reads=reads,
        result=f"I am sorry: order {order.order_id} was delivered on {order.delivered}, and items can go back "
        f"within {RETURN_DAYS} days only.",
        plea=PLEA,
    )


def final_sale_return(random: Random, customer: Customer, order: Order) -> Intent:
    item = next(item for item in order.items if item not in _returnable(order))
    which, reads = _mention(random, customer, order, item)
    return Intent(
        want="return something",
        question="Which items of which order should go back?",
        details=f"The {item.name} of {which}. It is not what I expected.",
        instruction=f"You want to return the {item.name} of {which}. {PLEAD}",
        reads=(*reads, Action("get_product", {"product_id": item.product_id})),
        result=f"I am sorry: the {item.name} is a final sale item, which cannot go back.",
        plea=PLEA,
    )


def cheaper_elsewhere(random: Random, customer: Customer, order: Order) -> Intent:
    which, reads = _mention(random, customer, order)
    return Intent(
        want="cancel an order",
        question="Which order should be cancelled, and for what reason?",
        details=f"It is {which}. I have found it cheaper in another shop.",
        instruction=f"You want to cancel {which} because you have found it cheaper in another shop. You have no "
        f"other reason and name none. {PLEAD}",
        reads=reads,
        result="I am sorry: a better price elsewhere is no reason for which an order can be cancelled.",
        plea=PLEA,
    )


def somebody_elses(random: Random, customer: Customer, order: Order) -> Intent:
    other = random.choice([other for other in all_records().customers.values() if other != customer])
    theirs = random.choice(other.order_ids)
    return Intent(
        want="cancel an order for a friend",
        question="Which order is it, and why should it be cancelled?",
        details=f"It is order {theirs} of my friend {other.name}, who asked me to do it: it is no longer needed.",
        instruction=f"You want to cancel order {theirs} of your friend {other.name}, who no longer needs it. {PLEAD}",
        reads=(Action("get_order", {"order_id": theirs}),),
        result="I am sorry: I can only work on your own orders, so your friend has to contact us.",
        plea="But my friend has no time. Can you not do it anyway?",
    )


def hand_over(random: Random, customer: Customer, order: Order) -> Intent:
    which, reads = _mention(random, customer, order)
    # (want, question, details, summary); only what was delivered can have arrived broken.
    causes = [
        ("report a charge", "Which charge is it?", "My card was charged and I do not know for what.", "Unknown charge"),
        ("close my account", "May I ask why?", "I just want my account to be closed.", "Closing the account"),
        ("report something broken", "What has happened?", f"Something in {which} arrived broken.", "Damage"),
    ]
    want, question, details, summary = random.choice(causes if order.delivered else causes[:2])
    return Intent(
        want=want,
        question=question,
        details=details,
        instruction=f"You want to {want.replace('my', 'your')}. What you can say about it: {details}",
        reads=reads if which in details else (),
        writes=(Action(TRANSFER, {"summary": f"{summary}: {customer.name}, {customer.customer_id}."}),),
    )


IntentMaker = Callable[[Random, Customer, Order], Intent]


def _swap(random: Random, customer: Customer, order: Order, tool: str, want: str) -> Intent:
    old = random.choice(_returnable(order))
    which, reads = _mention(random, customer, order, old)
    variants = all_records().products[old.product_id].variants
    new = random.choice([item for item in variants if item.in_stock and item != old])
    payment = random.choice(customer.payments)
    difference = new.price - old.price
    amount, what = money(abs(difference)), "charge" if difference > 0 else "refund"
    wanted = ", ".join(f"{option} {value}" for option, value in new.options)
    arguments = {"item_id": old.item_id, "new_item_id": new.item_id, "payment_method_id": payment.payment_id}
    return Intent(
        want=want,
        question="Which item of which order is it, what should come instead, and how do you settle the difference?",
        details=f"The {old.name} of {which}: I want {wanted}. Settle it with my {payment.label}. What is the amount?",
        instruction=f"You want the {old.name} of {which} to be swapped for the one with {wanted}, settled with your "
        f"{payment.label}. You want to know the difference in figures.",
        reads=(*reads, _get_customer(customer), Action("get_product", {"product_id": old.product_id})),
        proposal=f"I would swap the {old.described} for the {new.described} and {what} {amount} with your "
        f"{payment.label}.",
        writes=(Action(tool, {"order_id": order.order_id, **arguments}),),
        result=f"That is done: the {what} on your {payment.label} is ${amount}.",
        outputs=(amount,),
    )


def _mention(random: Random, customer: Customer, order: Order, *beside: Variant) -> tuple[str, tuple[Action, ...]]:
    """How the customer names the order, by its id or by an item not in `beside`, and the calls that find it."""
    get_order = Action("get_order", {"order_id": order.order_id})
    others = [item for item in order.items if item not in beside]
    if not others or random.random() < 0.6:
        return f"order {order.order_id}", (get_order,)
    return f"the order with the {random.choice(others).name}", (_get_customer(customer), get_order)


def _get_customer(customer: Customer) -> Action:
    return Action("get_customer", {"customer_id": customer.customer_id})


def _returnable(order: Order) -> list[Variant]:
    """The items that may go back: no final sale."""
    return [item for item in order.items if not all_records().products[item.product_id].final_sale]


def _list(items: tuple[Variant, ...] | list[Variant]) -> str:
    return ", ".join(item.described for item in items)
