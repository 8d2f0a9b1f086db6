"""The shop's tasks: a customer with one to three requests, as instruction, script and moves of a
perfect agent.

Task i of a split is a pure function of (split, i). A request concerns one order, as it is before
the episode, so requests about different orders combine freely. Reply k of the script answers the
k-th message among the moves.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from random import Random

from rollq.env import RESPOND, STOP_MARKER, Action, Task
from rollq.job import Json
from rollq_worker.environments.shop.records import (
    RETURN_DAYS,
    TODAY,
    items_total,
    new_address,
    records,
)
from rollq_worker.environments.shop.rules import SYSTEM_PROMPT
from rollq_worker.environments.shop.tools import CANCEL_REASONS, TRANSFER, WRAP_FEE


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A customer's request: carried out (`writes`), answered (no writes), refused (`refused`) or
    handed over (TRANSFER).
    """

    want: str
    """The customer's wish, behind "I would like to"."""
    question: str
    """The agent's next question."""
    details: str
    """The customer's answer to it, which the instruction has too."""
    reads: Sequence[Action] = ()
    proposal: str = ""
    """The agent's plan, before "Shall I go ahead?"."""
    writes: Sequence[Action] = ()
    result: str = ""
    """The agent's words at the end, with the outputs."""
    refused: bool = False
    outputs: Sequence[str] = ()


Maker = Callable[[Random, Json, Json], Request]
"""Makes a customer's request about an order."""


def cancel(random: Random, customer: Json, order: Json) -> Request:
    which, reads = _mention(random, customer, order)
    reason, why = random.choice(
        list(zip(CANCEL_REASONS, ("I no longer need it", "I ordered it by mistake"), strict=True))
    )
    return Request(
        want="cancel an order",
        question="Which order should be cancelled, and for what reason?",
        details=f"It is {which}, and {why}. Please tell me how much I get back.",
        reads=reads,
        proposal=f"I would cancel order {order['order_id']} as {reason} and refund "
        f"{order['total']}.",
        writes=[_on(order, "cancel_order", reason=reason)],
        result=f"Order {order['order_id']} is cancelled. Your refund is ${order['total']}.",
        outputs=[order["total"]],
    )


def change_address(random: Random, customer: Json, order: Json) -> Request:
    which, reads = _mention(random, customer, order)
    while (new := new_address(random)) == order["address"]:
        pass
    text = f"{new['street']}, {new['city']}, {new['state']} {new['zip']}"
    return Request(
        want="have an order sent to another address",
        question="Which order is it, and what is the new address?",
        details=f"It is {which}. Please send it to {text}.",
        reads=reads,
        proposal=f"I would send order {order['order_id']} to {text}, at no cost.",
        writes=[_on(order, "change_address", **new)],
        result=f"Order {order['order_id']} will now go to {text}.",
    )


def gift_wrap(random: Random, customer: Json, order: Json) -> Request:
    which, reads = _mention(random, customer, order)
    fee = "0.00" if customer["gold_member"] else WRAP_FEE
    comes_to = str(Decimal(order["total"]) + Decimal(fee))
    return Request(
        want="have an order gift-wrapped",
        question="Which order should be gift-wrapped?",
        details=f"It is {which}. What does the order come to with it, in figures?",
        reads=[*reads, _get_customer(customer)],
        proposal=f"I would have order {order['order_id']} gift-wrapped, which is ${fee}.",
        writes=[_on(order, "set_gift_wrap", wrapped=True)],
        result=f"Order {order['order_id']} will be gift-wrapped. It comes to ${comes_to}.",
        outputs=[comes_to],
    )


def change_item(random: Random, customer: Json, order: Json) -> Request:
    old = random.choice(order["items"])
    which, reads = _mention(random, customer, order, old)
    variants = records().products[old["product_id"]]["items"]
    new = random.choice(
        [item for item in variants if item["in_stock"] and item["item_id"] != old["item_id"]]
    )
    payment, label = random.choice(list(customer["payment_methods"].items()))
    difference = Decimal(new["price"]) - Decimal(old["price"])
    amount = str(abs(difference))
    what = "charge" if difference > 0 else "refund"
    wanted = ", ".join(f"{option} {value}" for option, value in new["options"].items())
    ids = {"item_id": old["item_id"], "new_item_id": new["item_id"], "payment_method_id": payment}
    return Request(
        want="change an item of an order",
        question="Which item of which order is it, what should come instead, and how do you "
        "settle the difference?",
        details=f"The {old['name']} of {which}: I want {wanted}. Settle it with my {label}. "
        "What is the amount?",
        reads=[
            *reads,
            _get_customer(customer),
            Action("get_product", {"product_id": old["product_id"]}),
        ],
        proposal=f"I would change the {old['name']} for {wanted} and {what} {amount} with your "
        f"{label}.",
        writes=[_on(order, "change_item", **ids)],
        result=f"That is done: the {what} on your {label} is ${amount}.",
        outputs=[amount],
    )


def return_items(random: Random, customer: Json, order: Json) -> Request:
    items = random.sample(order["items"], random.randint(1, len(order["items"])))
    which, reads = _mention(random, customer, order, *items)
    payment, label = random.choice(list(customer["payment_methods"].items()))
    refund = str(items_total(items))
    names = " and ".join(item["name"] for item in items)
    if len(items) > 1:
        reads = [
            *reads,
            Action("calculate", {"expression": " + ".join(item["price"] for item in items)}),
        ]
    item_ids = [item["item_id"] for item in items]
    return Request(
        want="return something",
        question="Which items of which order should go back, and where should the refund go?",
        details=f"The {names} of {which}. I want the money on my {label}. How much will it be?",
        reads=[*reads, _get_customer(customer)],
        proposal=f"I would take back the {names}. The refund to your {label} would be {refund}.",
        writes=[_on(order, "return_items", item_ids=item_ids, payment_method_id=payment)],
        result=f"The return is arranged. You will get ${refund} on your {label}.",
        outputs=[refund],
    )


def ask_tracking(random: Random, customer: Json, order: Json) -> Request:
    which, reads = _mention(random, customer, order)
    return Request(
        want="know the tracking number of an order",
        question="Which order is it?",
        details=f"I mean {which}.",
        reads=reads,
        result=f"The tracking number of order {order['order_id']} is {order['tracking']}.",
        outputs=[order["tracking"]],
    )


def late_return(random: Random, customer: Json, order: Json) -> Request:
    item = random.choice(order["items"])
    which, reads = _mention(random, customer, order, item)
    return Request(
        want="return something",
        question="Which items of which order should go back?",
        details=f"The {item['name']} of {which}, please.",
        reads=reads,
        result=f"I am sorry: it came on {order['delivered']}, and items can go back within "
        f"{RETURN_DAYS} days only.",
        refused=True,
    )


def cheaper_elsewhere(random: Random, customer: Json, order: Json) -> Request:
    which, reads = _mention(random, customer, order)
    return Request(
        want="cancel an order",
        question="Which order should be cancelled, and for what reason?",
        details=f"It is {which}. I have found it cheaper in another shop.",
        reads=reads,
        result="I am sorry: a better price elsewhere is no reason for which an order can be "
        "cancelled.",
        refused=True,
    )


def hand_over(random: Random, customer: Json, order: Json) -> Request:
    want, details = random.choice(
        [
            ("report a charge", "My card was charged and I do not know for what."),
            ("close my account", "I am leaving."),
        ]
    )
    summary = {"summary": f"{customer['name']} would like to {want}."}
    return Request(
        want=want,
        question="What has happened?",
        details=details,
        writes=[Action(TRANSFER, summary)],
    )


def _on(order: Json, tool: str, **arguments: Json) -> Action:
    return Action(tool, {"order_id": order["order_id"], **arguments})


def _mention(
    random: Random, customer: Json, order: Json, *beside: Json
) -> tuple[str, Sequence[Action]]:
    """The customer's name for the order, its id or an item not in `beside`, and the calls that find
    it.
    """
    others = [item["name"] for item in order["items"] if item not in beside]
    get_order = _on(order, "get_order")
    if not others or random.random() < 0.6:
        return f"order {order['order_id']}", [get_order]
    name = f"the order with the {random.choice(others)}"
    return name, [_get_customer(customer), get_order]


def _get_customer(customer: Json) -> Action:
    return Action("get_customer", {"customer_id": customer["customer_id"]})


def make_task(split: str, index: int) -> Task:
    """Task `index` of a split. The caller has checked both."""
    random = Random(f"shop task {split} {index}")
    customer = records().customers[records().task_customers[split, index]]
    orders = [records().orders[order_id] for order_id in customer["orders"]]
    about = random.sample(orders, random.choices((1, 2, 3), weights=(5, 4, 2))[0])
    requests = [_maker(random, order)(random, customer, order) for order in about]
    if random.random() < 0.08:  # last, because it ends the conversation
        requests[-1] = hand_over(random, customer, about[-1])
    opening, replies, moves = _script(random, customer, requests)
    zip_code = customer["address"]["zip"]
    instruction = [f"You are {customer['name']}, {customer['email']}, zip code {zip_code}."]
    for request in requests:
        want = request.want.replace("my", "your")
        instruction.append(f"You would like to {want}: {request.details}")
    instruction.append(
        "If the agent refuses, you ask once for an exception, then give in. If it asks to go "
        "ahead, agree."
    )
    content = [
        instruction,
        replies,
        [[move.name, move.arguments] for move in moves],
        customer,
        orders,
        SYSTEM_PROMPT,
    ]
    return Task(
        id=f"shop/{split}/{index}",
        hash=sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16],
        instruction=" ".join(instruction),
        opening=opening,
        replies=tuple(replies),
        moves=tuple(moves),
        outputs=tuple(output for request in requests for output in request.outputs),
    )


def _maker(random: Random, order: Json) -> Maker:
    """Draws a kind of request that fits the order. Changes are drawn more often."""
    if order["delivered"] is None:
        makers: dict[Maker, int] = {cancel: 5, change_address: 4, gift_wrap: 4, change_item: 5}
        makers |= {ask_tracking: 1, cheaper_elsewhere: 2}
    elif (TODAY - TODAY.fromisoformat(order["delivered"])).days <= RETURN_DAYS:
        makers = {return_items: 1}
    else:
        makers = {late_return: 2, ask_tracking: 3}
    return random.choices(list(makers), weights=list(makers.values()))[0]


def _script(
    random: Random, customer: Json, requests: Sequence[Request]
) -> tuple[str, list[str], list[Action]]:
    """The customer's first words and replies, and the moves of a perfect agent."""
    who, look_up = _identify(random, customer)
    moves = [look_up]
    replies: list[str] = []
    say = f"Thank you, {customer['name']}, I have found your account."

    def exchange(text: str, reply: str) -> None:
        moves.append(Action(RESPOND, {"content": text}))
        replies.append(reply)

    for n, request in enumerate(requests):
        if n == 0:
            exchange(f"{say} {request.question}", request.details)
        else:
            more = f"Yes, I would also like to {request.want}. {request.details}"
            exchange(f"{say} Is there anything else?", more)
        moves.extend(read for read in request.reads if read not in moves)
        if request.proposal:
            exchange(f"{request.proposal} Shall I go ahead?", "Yes, please go ahead.")
        moves.extend(request.writes)
        say = request.result
        if request.refused:
            exchange(say, "Can you not make an exception, just this once?")
            say = "I am sorry, I cannot make an exception."
    if moves[-1].name == TRANSFER:  # for an agent that goes on talking instead
        replies += [
            "I would like to talk to somebody who can take care of it.",
            "Is there nobody else?",
        ]
    else:
        if len(replies) < 2:  # so that an agent that only chats also plays several turns
            exchange(
                f"{say} Is there anything else?",
                "Good to know. Let me think whether there was something else.",
            )
            say = "Of course, take your time."
        goodbye = f"{say} Is there anything else I can do for you?"
        moves.append(Action(RESPOND, {"content": goodbye}))
    replies.append(f"Thank you, that is all. {STOP_MARKER}")
    return f"Hello, {who} I would like to {requests[0].want}.", replies, moves


def _identify(random: Random, customer: Json) -> tuple[str, Action]:
    """The customer's introduction, and the call that finds the customer."""
    name = customer["name"]
    email = customer["email"]
    zip_code = customer["address"]["zip"]
    if random.random() < 0.5:
        look_up = Action("find_customer_by_email", {"email": email})
        return f"this is {name}, my e-mail address is {email}.", look_up
    look_up = Action("find_customer_by_name", {"name": name, "zip": zip_code})
    return f"my name is {name} and my zip code is {zip_code}.", look_up
