"""A task: one customer with one to three intents, as an instruction, a script and the moves of a perfect agent.

Task i of a split is a pure function of (split, i). Reply k of the script answers the k-th message among the moves.
Every script has at least three replies.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from random import Random

from rollq.env import RESPOND, STOP_MARKER, Action, Task
from rollq_worker.environments.shop import intents
from rollq_worker.environments.shop.intents import Intent, IntentMaker
from rollq_worker.environments.shop.records import TODAY, Customer, Order, Status, all_records
from rollq_worker.environments.shop.rules import SYSTEM_PROMPT
from rollq_worker.environments.shop.tools import TRANSFER

SHORTEST = 3
"""Fewest replies in a script, so that an agent that only chats also plays several turns."""

CLOSING = f"Thank you, that is all. {STOP_MARKER}"

_PENDING: tuple[tuple[IntentMaker, int], ...] = (
    (intents.cancel, 5),
    (intents.change_address, 4),
    (intents.gift_wrap, 4),
    (intents.change_item, 5),
    (intents.ask_tracking, 1),
    (intents.cheaper_elsewhere, 2),
)
_LATELY: tuple[tuple[IntentMaker, int], ...] = ((intents.return_items, 5), (intents.exchange_item, 5))
_OUTLET: tuple[tuple[IntentMaker, int], ...] = ((intents.final_sale_return, 4),)
_LONG_AGO: tuple[tuple[IntentMaker, int], ...] = (
    (intents.late_return, 2),
    (intents.ask_tracking, 2),
    (intents.ask_price, 2),
    (intents.somebody_elses, 1),
)


def make_task(split: str, index: int) -> Task:
    """Task `index` of a split. The caller has checked both."""
    random = Random(f"shop task {split} {index}")
    records = all_records()
    customer = records.customers[records.task_customers[split, index]]
    orders = [records.orders[order_id] for order_id in customer.order_ids]
    chosen = _choose(random, customer, orders)
    opening, replies, moves = _script(random, customer, chosen)
    instruction = " ".join(
        [
            f"You are {customer.name}.",
            f"Your e-mail address is {customer.email} and your zip code is {customer.address.zip}.",
            *(intent.instruction for intent in chosen),
            "If the agent asks whether to go ahead with just that, you agree.",
        ]
    )
    outputs = tuple(output for intent in chosen for output in intent.outputs)
    content = [instruction, opening, replies, [[move.name, move.arguments] for move in moves], outputs, SYSTEM_PROMPT]
    facts = [asdict(customer), *map(asdict, orders)]
    return Task(
        id=f"shop/{split}/{index}",
        hash=sha256(json.dumps([content, facts], sort_keys=True, default=str).encode()).hexdigest()[:16],
        instruction=instruction,
        opening=opening,
        replies=tuple(replies),
        moves=tuple(moves),
        outputs=outputs,
    )


def _choose(random: Random, customer: Customer, orders: Sequence[Order]) -> list[Intent]:
    """One to three intents about different orders; a hand-over comes last, because it ends the conversation."""
    about = random.sample(orders, random.choices((1, 2, 3), weights=(5, 4, 2))[0])
    chosen = [_maker(random, order)(random, customer, order) for order in about]
    if random.random() < 0.08:
        chosen[-1] = intents.hand_over(random, customer, about[-1])
    return chosen


def _maker(random: Random, order: Order) -> IntentMaker:
    if order.status is Status.PENDING:
        table = _PENDING
    elif order.delivered and (TODAY - order.delivered).days > 30:
        table = _LONG_AGO
    else:
        outlet = any(all_records().products[item.product_id].final_sale for item in order.items)
        table = _LATELY + _OUTLET if outlet else _LATELY
    return random.choices([maker for maker, _ in table], weights=[weight for _, weight in table])[0]


def _script(random: Random, customer: Customer, chosen: Sequence[Intent]) -> tuple[str, list[str], list[Action]]:
    hello = random.choice(("Hello", "Hi", "Good morning", "Good afternoon"))
    agreement = random.choice(("Yes, please go ahead.", "Yes, please do that.", "Yes, that is right, go ahead."))
    who, look_up = _identify(random, customer)
    moves, replies = [look_up], list[str]()
    say = f"Thank you, {customer.first_name}, I have found your account."

    def exchange(text: str, reply: str) -> None:
        moves.append(Action(RESPOND, {"content": text}))
        replies.append(reply)

    for place, intent in enumerate(chosen):
        if place == 0:
            exchange(f"{say} {intent.question}", intent.details)
        else:
            exchange(f"{say} Is there anything else?", f"Yes, I would also like to {intent.want}. {intent.details}")
        moves.extend(read for read in intent.reads if read not in moves)
        if intent.proposal:
            exchange(f"{intent.proposal} Shall I go ahead?", agreement)
        moves.extend(intent.writes)
        say = intent.result
        if intent.plea:
            exchange(say, intent.plea)
            say = "I am sorry, I cannot make an exception."
    if moves[-1].name == TRANSFER:
        # For an agent that goes on talking instead.
        replies += ["I would like to talk to somebody who can take care of it.", "Is there nobody else?"]
    else:
        if len(replies) < SHORTEST - 1:
            exchange(f"{say} Is there anything else?", "Good to know. Let me think whether there was something else.")
            say = "Of course, take your time."
        moves.append(Action(RESPOND, {"content": f"{say} Is there anything else I can do for you?"}))
    return f"{hello}, {who} I would like to {chosen[0].want}.", [*replies, CLOSING], moves


def _identify(random: Random, customer: Customer) -> tuple[str, Action]:
    """How customers say who they are, and the call that finds them."""
    if random.random() < 0.5:
        return (
            f"this is {customer.name}, my e-mail address is {customer.email}.",
            Action("find_customer_by_email", {"email": customer.email}),
        )
    arguments = {"first_name": customer.first_name, "last_name": customer.last_name, "zip": customer.address.zip}
    return (
        f"my name is {customer.name} and my zip code is {customer.address.zip}.",
        Action("find_customer_by_name", arguments),
    )
