"""An episode of tau2_2025 is worth what the package's own toolkit, scorer and hash give it."""

import random
from collections import Counter

import pytest

from rollq.env import RESPOND, Action
from rollq_worker.fakes import FakeUser
from rollq_worker.text.whole_text import whole_characters
from tests.rollq_worker.environments.episodes import calls_of, messages_of, mistaken, play

pytestmark = [
    pytest.mark.packages,
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic"),
    pytest.mark.usefixtures("no_garbage_collection"),
]
IDS = {
    "retail": {"order_id": "orders", "user_id": "users", "product_id": "products"},
    "airline": {"reservation_id": "reservations", "user_id": "users", "flight_number": "flights"},
}


def every_task(tau2_domain):
    """Each task once: the split `base` has them all."""
    return [("base", index) for index in range(tau2_domain.splits()["base"])]


def test_every_task_is_worth_what_the_package_s_scorer_gives(tau2_domain, original):
    before = original.hash_of(tau2_domain.backend.database.tables)
    assert before == original.hash
    for split, index in every_task(tau2_domain):
        task = tau2_domain.task(split, index)
        calls = calls_of(task)
        due, expected = original.replay(calls)
        grade, seen = play(tau2_domain, split, index, task.moves)
        assert grade.reward == 1.0, (task.id, grade.info)
        ours = [text for move, text in zip(task.moves, seen, strict=True) if move.name != RESPOND]
        assert [o for o, e in zip(ours, expected, strict=True) if e is not None] == [
            e for e in expected if e is not None
        ]
        nothing, _ = play(tau2_domain, split, index, [])
        assert nothing.reward == float(due == original.hash and not task.outputs), task.id
        assert nothing.info["database"] == (due == original.hash)
    assert original.hash_of(tau2_domain.backend.database.tables) == before


SAMPLED = 4
"""Tasks whose mistakes are compared: the original way takes about a third of a second each."""


def test_wrong_ground_truths_are_worth_the_same(tau2_domain, original):
    tasks = [at for at in every_task(tau2_domain) if len(calls_of(tau2_domain.task(*at))) > 2]
    verdicts = []
    for split, index in random.Random(1).sample(tasks, SAMPLED):
        task = tau2_domain.task(split, index)
        calls = calls_of(task)
        due, _ = original.replay(calls)
        for wrong in mistaken(calls):
            got, expected = original.replay(wrong)
            first, *rest = messages_of(task)
            grade, seen = play(tau2_domain, split, index, [first, *wrong, *rest])
            assert grade.info["database"] == (got == due), (task.id, wrong)
            assert grade.reward == float(got == due)
            for text, theirs in zip(seen[1:], expected, strict=False):
                assert theirs is None or theirs == text or "are wrong" in text
            verdicts.append(grade.reward)
    assert 0.0 in verdicts and 1.0 in verdicts


TALK = [[], ["It is done."], ["You paid 1,093.34 for the CAMERA."], ["481.5", "0"], ["8276", ".23"]]


@pytest.mark.parametrize("told", TALK)
def test_what_was_told_counts_as_the_package_s_scorer_has_it(tau2_domain, original, told):
    tasks = [at for at in every_task(tau2_domain) if tau2_domain.task(*at).outputs]
    for split, index in [*tasks[:3], *tasks[-3:]]:
        task = tau2_domain.task(split, index)
        for lines in (
            told,
            [*told, *(f"{output[:2].upper()},{output[2:]}" for output in task.outputs)],
        ):
            told_all = not tau2_domain.backend.missing_outputs(task.outputs, lines)
            assert told_all == original.tells_all_outputs(task, lines), (task.id, lines)


def test_a_number_of_another_type_is_another_database(original, tau2_domain, variant):
    environment, toolkit = tau2_domain.open("test", 0, {}), original.fresh()
    name = {"retail": "orders", "airline": "reservations"}[variant]
    key = next(iter(tau2_domain.backend.database.tables[name]))
    for records in (environment._state[name], getattr(toolkit.db, name)):
        payment = records[key].payment_history[0]
        payment.amount = {int: float, float: int}[type(payment.amount)](payment.amount)
    assert (tau2_domain.backend.database.changes(environment._state) == {}) == (
        toolkit.db.get_hash() == original.hash
    )
    assert original.hash_of(environment._state) == toolkit.db.get_hash()


def sampled_call(rng, tau2_domain, variant, tables):
    """A call that mostly names real records, as a policy's would, and is sometimes nonsense."""
    function = rng.choice(tau2_domain.backend.tools)["function"]
    arguments = {}
    record = None
    for name, schema in function["parameters"]["properties"].items():
        if name in IDS[variant]:
            # Few records, so that calls meet on them.
            key = rng.choice(list(tables[IDS[variant][name]])[:3])
            record = record or tables[IDS[variant][name]][key]
            arguments[name] = key
        else:
            arguments[name] = sampled_value(rng, name, schema, record)
    if rng.random() < 0.05 and arguments:
        arguments.pop(rng.choice(list(arguments)))
    return Action(function["name"], arguments)


def sampled_value(rng, name, schema, record):
    if rng.random() < 0.03:
        return rng.choice([None, [], {}, "x", 3, 2.5, [{"flight_number": 1}], True])
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema["type"] == "integer":
        return rng.choice([0, 1, 2, 50, 2.0])
    if name == "expression":
        return rng.choice(["1+1", "9**9**9", "1/0", "2*(3", "0.1+0.2"])
    if schema["type"] == "array":
        lists = [
            v
            for k, v in (vars(record) if record else {}).items()
            if k in ("flights", "passengers", "payment_history")
        ]
        if name in ("item_ids", "new_item_ids"):
            return [i.item_id for i in getattr(record, "items", [])][: rng.randrange(3)]
        return [item.model_dump() for item in rng.choice(lists)] if lists else []
    methods = getattr(record, "payment_methods", None) or [
        p.payment_method_id if hasattr(p, "payment_method_id") else p.payment_id
        for p in getattr(record, "payment_history", [])
    ]
    if "payment" in name and methods:
        return rng.choice(list(methods))
    return rng.choice(
        [
            "no longer needed",
            "ordered by mistake",
            "SFO",
            "JFK",
            "2024-05-20",
            "2024-05-16",
            "x",
            "\ud800",
        ]
    )


def test_sampled_calls_do_the_same_and_leave_the_pristine_database_alone(
    tau2_domain, original, variant
):
    rng = random.Random(7)
    environment, toolkit = tau2_domain.open("test", 0, {}), original.fresh()
    environment.reset(FakeUser())
    changed, cancelled = 0, Counter()
    for _ in range(1500):
        action = sampled_call(rng, tau2_domain, variant, tau2_domain.backend.database.tables)
        if action.name == "cancel_reservation":
            cancelled[str(action.arguments)] += 1
            if cancelled[str(action.arguments)] > 3:
                continue  # every cancellation doubles the payments
        text = environment.step(action).text
        if text.startswith("Error: ") and "are wrong" in text:
            continue  # the package's solver would not have called the tool either
        arguments = {k: int(v) if isinstance(v, float) else v for k, v in action.arguments.items()}
        try:
            expected = original.call(toolkit, Action(action.name, arguments))
        except Exception as e:
            assert text.startswith("Error: "), (action, e)
            continue
        if expected is not None:
            assert whole_characters(text) == whole_characters(expected), ascii(action)
            changed += not text.startswith("Error: ")
    assert changed > 300
    assert original.hash_of(environment._state) == toolkit.db.get_hash() != original.hash
    assert original.hash_of(tau2_domain.backend.database.tables) == original.hash
