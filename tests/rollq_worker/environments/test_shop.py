"""The shop: every task of every split is sound, and only its ground truth earns the reward."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.errors import EnvironmentFailure, JobFailure, UserFailure
from rollq_worker.environments import shop
from rollq_worker.environments.shop import calculator, tools
from rollq_worker.environments.shop.database import Database
from rollq_worker.environments.shop.records import Status, world
from rollq_worker.environments.shop.rules import SYSTEM_PROMPT
from rollq_worker.protocols import RESPOND, STOP_MARKER, Action, Environment, Grade, Task
from rollq_worker.users import ScriptedUser

DOMAIN = shop.load(None)
EVERY = [(split, index) for split, size in DOMAIN.splits().items() for index in range(size)]
WRITES = {"cancel_order", "change_address", "set_gift_wrap", "change_item", "exchange_item", "return_items"}


def started(split: str, index: int) -> tuple[Task, Environment]:
    task = DOMAIN.task(split, index)
    environment = DOMAIN.open(split, index, {})
    assert environment.reset(ScriptedUser(task.opening, task.replies)) == task.opening
    return task, environment


def played(split: str, index: int, moves: list[Action]) -> Grade:
    """The grade after those moves and then silence until the user leaves."""
    _, environment = started(split, index)
    done = False
    for move in moves:
        if done := environment.step(move).done:
            break
    while not done:
        done = environment.step(Action(RESPOND, {"content": ""})).done
    return environment.grade()


def calls(task: Task) -> list[Action]:
    return [move for move in task.moves if move.name != RESPOND]


def tasks_that_write() -> Iterator[tuple[str, int, Task, int]]:
    """(split, index, task, place of a write among the moves)."""
    for split, index in EVERY:
        task = DOMAIN.task(split, index)
        for place, move in enumerate(task.moves):
            if move.name in WRITES:
                yield split, index, task, place


def test_splits() -> None:
    assert dict(DOMAIN.splits()) == {"train": 500, "test": 100, "dev": 20}


def test_ground_truth_earns_the_reward_on_every_task() -> None:
    for split, index in EVERY:
        task, environment = started(split, index)
        for place, move in enumerate(task.moves):
            observation = environment.step(move)
            assert not observation.text.startswith("Error"), (task.id, move, observation)
            assert observation.done == (place == len(task.moves) - 1), (task.id, place)
        assert environment.grade() == Grade(
            reward=1.0, info={"database": True, "outputs": True, "wrong_records": [], "untold": []}
        ), task.id


def test_doing_nothing_earns_it_only_where_nothing_is_to_be_done_or_told() -> None:
    idle = 0
    for split, index in EVERY:
        task = DOMAIN.task(split, index)
        changes = any(move.name in WRITES or move.name == tools.TRANSFER for move in task.moves)
        expected = 0.0 if changes or task.outputs else 1.0
        assert played(split, index, []).reward == expected, task.id
        idle += expected == 1.0
    assert 0 < idle < len(EVERY) / 6  # refusals are part of the job, but not a way to live


def test_a_skipped_write_or_transfer_costs_the_reward() -> None:
    seen = set()
    for split, index in EVERY:
        task = DOMAIN.task(split, index)
        for place, move in enumerate(task.moves):
            if move.name in WRITES or move.name == tools.TRANSFER:
                moves = [*task.moves[:place], *task.moves[place + 1 :]]
                grade = played(split, index, moves)
                assert grade.reward == 0.0 and not grade.info["database"], (task.id, move)
                seen.add(move.name)
    assert seen == WRITES | {tools.TRANSFER}


def test_a_wrong_argument_costs_the_reward() -> None:
    for split, index, task, place in tasks_that_write():
        move = task.moves[place]
        name, value = list(move.arguments.items())[-1]
        wrong = {
            "reason": next((reason for reason in tools.CANCEL_REASONS if reason != value), None),
            "wrapped": not value,
            "zip": "00000",
            "payment_method_id": "card-1",
        }[name]
        moves = list(task.moves)
        moves[place] = Action(move.name, {**move.arguments, name: wrong})
        assert played(split, index, moves).reward == 0.0, (task.id, moves[place])


def test_a_write_too_many_costs_the_reward() -> None:
    """Cancelling a pending order that nobody spoke of, in tasks of all kinds."""
    for split, index in EVERY[::7]:
        task = DOMAIN.task(split, index)
        mentioned = json.dumps([dict(move.arguments) for move in task.moves])
        free = [
            order_id
            for order_id in world().customers[world().cast[split, index]].order_ids
            if order_id not in mentioned and world().orders[order_id].status is Status.PENDING
        ]
        for order_id in free[:1]:
            extra = Action("cancel_order", {"order_id": order_id, "reason": "ordered by mistake"})
            grade = played(split, index, [task.moves[0], extra, *task.moves[1:]])
            assert grade.reward == 0.0
            assert grade.info["wrong_records"] == [order_id]


def test_an_output_that_is_not_told_costs_the_reward() -> None:
    split, index = next((s, i) for s, i in EVERY if DOMAIN.task(s, i).outputs)
    task = DOMAIN.task(split, index)
    silent = [Action(RESPOND, {"content": "Done."}) if move.name == RESPOND else move for move in task.moves]
    grade = played(split, index, silent)
    assert grade.reward == 0.0
    assert grade.info == {"database": True, "outputs": False, "wrong_records": [], "untold": list(task.outputs)}


def test_outputs_are_found_whatever_case_and_commas() -> None:
    task = replace(DOMAIN.task("dev", 0), outputs=("1299.50", "T123 abc"))
    environment = shop.environment.ShopEnvironment(task, Database)
    environment.reset(ScriptedUser("Hi", ["So?", f"Bye {STOP_MARKER}"]))
    environment.step(Action(RESPOND, {"content": "It is $1,299.50."}))
    environment.step(Action(RESPOND, {"content": "See t123 ABC."}))
    assert environment.grade().reward == 1.0


def test_openings_are_unique_and_scripts_long_enough() -> None:
    tasks = [DOMAIN.task(split, index) for split, index in EVERY]
    assert len({task.opening for task in tasks}) == len({task.id for task in tasks}) == len(tasks)
    for task in tasks:
        assert len(task.replies) >= 3
        assert [STOP_MARKER in reply for reply in task.replies] == [False] * (len(task.replies) - 1) + [True]
        assert STOP_MARKER not in task.opening


def test_tasks_are_of_many_kinds_and_lengths() -> None:
    lengths = [len(calls(DOMAIN.task(split, index))) for split, index in EVERY]
    assert min(lengths) <= 2 and max(lengths) >= 8
    assert sorted(lengths)[len(lengths) // 2] in (4, 5)
    used = {move.name for split, index in EVERY for move in calls(DOMAIN.task(split, index))}
    assert used == {schema["function"]["name"] for schema in tools.SCHEMAS}


def test_the_policy_is_read_in_a_minute() -> None:
    assert 300 <= len(SYSTEM_PROMPT.split()) <= 500


PRINT_DIGEST = """
import hashlib, json
from rollq_worker.environments import shop
domain = shop.load(None)
for split, size in domain.splits().items():
    for index in range(size):
        task = domain.task(split, index)
        print(task.hash, task.opening, task.instruction, *task.replies, *task.outputs)
        print([(move.name, dict(move.arguments)) for move in task.moves])
"""


def test_the_same_tasks_in_every_process() -> None:
    """Golden: whoever changes it has changed the tasks and raises shop.domain.VERSION as well."""
    digests = set()
    for seed in ("0", "4711"):
        output = subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        assert output.count(b"\n") == 2 * len(EVERY)
        digests.add(sha256(output).hexdigest()[:16])
    assert (shop.domain.VERSION, digests) == ("1", {"eddda3f08646dc30"})


def test_a_task_does_not_depend_on_what_was_asked_before() -> None:
    fresh = shop.tasks.make_task("test", 42)
    shop.tasks.make_task("train", 3)
    assert shop.tasks.make_task("test", 42) == fresh == DOMAIN.task("test", 42)


@pytest.mark.parametrize(
    ("split", "index", "args", "words"),
    [
        ("valid", 0, {}, "train, test, dev"),
        ("dev", 20, {}, "tasks 0 to 19"),
        ("dev", -1, {}, "tasks 0 to 19"),
        ("dev", True, {}, "tasks 0 to 19"),
        ("dev", 0, {"difficulty": "hard"}, "takes no env_args, not difficulty"),
    ],
)
def test_what_cannot_be_opened(split: str, index: int, args: dict[str, str], words: str) -> None:
    with pytest.raises(JobFailure, match=words):
        DOMAIN.open(split, index, args)
    if not args:
        with pytest.raises(JobFailure, match=words):
            DOMAIN.task(split, index)


def test_there_is_one_shop() -> None:
    with pytest.raises(JobFailure, match="no variant 'retail'"):
        shop.load("retail")


ORDER = next(order for order in world().orders.values() if order.status is Status.PENDING)
PAID = next(order for order in world().orders.values() if order.status is Status.DELIVERED and len(order.items) > 1)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("delete_everything", {}, "there is no tool 'delete_everything'"),
        ("x" * 5000, {}, "there is no tool"),
        (RESPOND + "s", {"content": "hi"}, "there is no tool"),
        ("get_order", {}, "missing argument order_id"),
        ("get_order", [], "must be an object"),
        ("get_order", {"order_id": ORDER.order_id, "verbose": True}, "unknown argument 'verbose'"),
        ("get_order", {"order_id": 7}, "order_id must be a string"),
        ("get_order", {"order_id": None}, "order_id must be a string"),
        ("get_order", {"order_id": ["S-1"]}, "order_id must be a string"),
        ("get_order", {"order_id": "S-1"}, "there is no order 'S-1'"),
        ("get_order", {"order_id": "\ud800" * 100}, "there is no order"),
        ("get_customer", {"customer_id": "C-0"}, "there is no customer 'C-0'"),
        ("find_customer_by_email", {"email": "nobody@example.com"}, "there is no customer with the e-mail"),
        ("find_customer_by_name", {"first_name": "Ida", "last_name": "Ueda", "zip": "1"}, "this name and zip code"),
        ("find_customer_by_name", {"first_name": "No", "last_name": "One", "zip": "1"}, "this name and zip code"),
        ("search_products", {"query": "  "}, "the query is empty"),
        ("get_product", {"product_id": "P-0"}, "there is no product 'P-0'"),
        (
            "cancel_order",
            {"order_id": ORDER.order_id, "reason": "too dear"},
            "reason must be one of 'no longer needed'",
        ),
        ("cancel_order", {"order_id": PAID.order_id, "reason": "no longer needed"}, "is delivered, not pending"),
        ("set_gift_wrap", {"order_id": ORDER.order_id, "wrapped": "yes"}, "wrapped must be true or false"),
        ("set_gift_wrap", {"order_id": ORDER.order_id, "wrapped": 1}, "wrapped must be true or false"),
        (
            "return_items",
            {"order_id": PAID.order_id, "item_ids": [], "payment_method_id": PAID.payment_id},
            "item_ids must be a list of strings, not empty",
        ),
        (
            "return_items",
            {"order_id": PAID.order_id, "item_ids": [1], "payment_method_id": PAID.payment_id},
            "item_ids must be a list of strings",
        ),
        (
            "return_items",
            {"order_id": PAID.order_id, "item_ids": ["P-0-0"], "payment_method_id": PAID.payment_id},
            "holds no item 'P-0-0'",
        ),
        (
            "return_items",
            {"order_id": PAID.order_id, "item_ids": [PAID.items[0].item_id] * 2, "payment_method_id": PAID.payment_id},
            "named twice",
        ),
        (
            "return_items",
            {"order_id": PAID.order_id, "item_ids": [PAID.items[0].item_id], "payment_method_id": "card-1"},
            "has no payment method 'card-1'",
        ),
        (
            "return_items",
            {
                "order_id": ORDER.order_id,
                "item_ids": [ORDER.items[0].item_id],
                "payment_method_id": ORDER.payment_id,
            },
            "is pending, not delivered",
        ),
        ("calculate", {"expression": "9**9**9"}, "only numbers"),
        (RESPOND, {}, "needs a text"),
        (RESPOND, {"content": None}, "needs a text"),
        (RESPOND, {"content": 3}, "needs a text"),
    ],
)
def test_mistakes_of_the_policy_are_observations(name: str, arguments: dict[str, object], words: str) -> None:
    _, environment = started("dev", 0)
    observation = environment.step(Action(name, arguments))
    assert observation.text.startswith("Error: ") and words in observation.text
    assert len(observation.text.encode()) < 300
    assert not observation.done


def test_swaps_that_cannot_be() -> None:
    order = next(order for order in world().orders.values() if order.status is Status.PENDING and len(order.items) > 1)
    item, other = order.items[:2]
    variants = world().products[item.product_id].variants
    arguments = {"order_id": order.order_id, "item_id": item.item_id, "payment_method_id": order.payment_id}

    def said(**changes: str) -> str:
        return tools.call(Database(), "change_item", {**arguments, **changes})

    assert "is the item in the order" in said(new_item_id=item.item_id)
    assert "is not a variant of the same product" in said(new_item_id=other.item_id)
    assert "there is no item 'P-0-0'" in said(new_item_id="P-0-0")
    assert "holds no item" in said(item_id="P-0-0", new_item_id=item.item_id)
    good = next(one for one in variants if one.in_stock and one != item)
    assert "has no payment method" in said(new_item_id=good.item_id, payment_method_id="cash")
    assert json.loads(said(new_item_id=good.item_id))["new_item"]["item_id"] == good.item_id
    sold_out = next(one for one in world().items.values() if not one.in_stock)
    holder = next(
        one
        for one in world().orders.values()
        if one.status is Status.PENDING and any(part.product_id == sold_out.product_id for part in one.items)
    )
    part = next(part for part in holder.items if part.product_id == sold_out.product_id)
    arguments = {"order_id": holder.order_id, "item_id": part.item_id, "payment_method_id": holder.payment_id}
    assert "sold out" in said(new_item_id=sold_out.item_id)


def test_an_order_goes_back_once() -> None:
    database = Database()
    arguments = {
        "order_id": PAID.order_id,
        "item_ids": [item.item_id for item in PAID.items],
        "payment_method_id": PAID.payment_id,
    }
    assert json.loads(tools.call(database, "return_items", arguments))["status"] == "return requested"
    assert "is return requested, not delivered" in tools.call(database, "return_items", arguments)
    assert "items_sent_back" in tools.call(database, "get_order", {"order_id": PAID.order_id})


def test_the_sequence_of_returned_items_does_not_matter() -> None:
    one, other = Database(), Database()
    items = [item.item_id for item in PAID.items]
    for database, named in ((one, items), (other, items[::-1])):
        arguments = {"order_id": PAID.order_id, "item_ids": named, "payment_method_id": PAID.payment_id}
        tools.call(database, "return_items", arguments)
    assert one.differences(other) == []


def test_a_change_taken_back_is_none() -> None:
    database = Database()
    for wrapped in (True, False):
        tools.call(database, "set_gift_wrap", {"order_id": ORDER.order_id, "wrapped": wrapped})
    assert database.differences(Database()) == []


def test_episodes_do_not_see_each_other() -> None:
    _, first = started("dev", 0)
    _, second = started("dev", 0)
    look = Action("get_order", {"order_id": ORDER.order_id})
    before = second.step(look)
    first.step(Action("cancel_order", {"order_id": ORDER.order_id, "reason": "no longer needed"}))
    assert second.step(look) == before != first.step(look)


def test_a_finished_episode_is_frozen() -> None:
    task, environment = started("dev", 0)
    with pytest.raises(EnvironmentFailure, match="reset of an episode that is running"):
        environment.reset(ScriptedUser(task.opening, task.replies))
    while not environment.step(Action(RESPOND, {"content": "Hm."})).done:
        pass
    with pytest.raises(EnvironmentFailure, match="dev/0: step of an episode that is done"):
        environment.step(task.moves[0])
    environment.grade()
    with pytest.raises(EnvironmentFailure, match="graded twice"):
        environment.grade()


def test_nothing_before_the_reset() -> None:
    environment = DOMAIN.open("dev", 0, {})
    with pytest.raises(EnvironmentFailure, match="step of an episode that is new"):
        environment.step(Action("get_order", {"order_id": ORDER.order_id}))
    with pytest.raises(EnvironmentFailure, match="graded before its reset"):
        environment.grade()


def test_an_episode_cut_short_is_graded_as_it_stands() -> None:
    split, index, task, place = next(tasks_that_write())
    _, environment = started(split, index)
    for move in task.moves[: place + 1]:
        environment.step(move)
    assert environment.grade().info["database"]


def test_a_user_that_says_nothing_is_a_user_failure() -> None:
    class Mute:
        def open(self) -> str:
            return "Hi"

        def reply(self, message: str) -> str:
            return None  # type: ignore[return-value]

    environment = DOMAIN.open("dev", 0, {})
    environment.reset(Mute())
    with pytest.raises(UserFailure, match="NoneType"):
        environment.step(Action(RESPOND, {"content": "Hello"}))


def test_transfer_ends_the_episode_and_is_graded() -> None:
    _, environment = started("dev", 0)
    assert environment.step(Action(tools.TRANSFER, {"summary": "Help."})).done
    assert "handed over" in environment.grade().info["wrong_records"]


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
    text = tools.call(Database(), name, arguments)
    assert text.startswith("Error: ") or json.loads(text) is not None
    text.encode()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("129.45 + 17.20", "146.65"),
        ("(1 + 2) * -3", "-9.00"),
        ("0.1 + 0.2", "0.30"),
        ("10 / 4", "2.50"),
        ("1 / 3", "0.33"),
        ("-0.001", "0.00"),
        ("+5", "5.00"),
        (" 2*3 ", "6.00"),
        (f"{'(' * 30}1{')' * 30}", "1.00"),
        ("-" * 90 + "1", "1.00"),
        ("*".join(["9" * 9] * 10), f"{999999999**10}.00"),
    ],
)
def test_calculate(expression: str, value: str) -> None:
    assert calculator.calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "2 ** 3",
        "9**9**9**9",
        "7 // 2",
        "1 +",
        "1 2",
        "1(2)",
        "(1, 2)",
        "()",
        "012",
        "1.2.3",
        "1e9",
        "1 if 2 else 3",
        "__import__('os')",
        "1 / 0",
        "1 / (2 - 2)",
        "1" * 101,
        "(" * 50 + ")" * 50,
        "1\n2",
        "\x00",
        "٣",
    ],
)
def test_what_is_not_calculated(expression: str) -> None:
    with pytest.raises(ValueError):
        calculator.calculate(expression)


@settings(max_examples=300, deadline=None)
@given(st.text("0123456789.+-*/() ", max_size=110))
def test_calculate_only_ever_raises_value_errors(expression: str) -> None:
    with suppress(ValueError):
        float(calculator.calculate(expression))
