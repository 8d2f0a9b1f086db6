"""Jobs, groups, batches and errors: what they refuse and what they derive."""

import pickle
import subprocess
import sys
from dataclasses import replace
from enum import Enum
from typing import Any

import pytest

import rollq
from rollq import Client, errors
from rollq.job import Budget, Job, parse_id
from rollq.wire.codec import decode_job, encode_job
from tests.rollq.samples import job


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": "a b"},
        {"group": "{g}"},
        {"sample": 2},
        {"sample": -1},
        {"sample": True},
        {"task": 1.0},
        {"task": -1},
        {"seed": 2**53},
        {"size": 0},
        {"size": 0, "spare": 1},
        {"min_viable": 3},
        {"spare": -1},
        {"weight_version": 5},
        {"weight_version": "v" * 257},
        {"template_kwargs": ["thinking"]},
        {"adapter": "math@7"},
        {"adapter": None},
        {"template_kwargs": {"messages": []}},
        {"template_kwargs": {"bos_token": "<s>"}},
        {"template_kwargs": {1: True}},
        {"spare": True},
        {"spare": 9_999},
        {"spare": 1, "purpose": "eval"},
        {"sample": 3, "spare": 1},
        {"env": ""},
        {"env": "maths.jsonl:number"},
        {"env_args": [1]},
        {"user": None},
        {"labels": ["a"]},
        {"queue": ""},
        {"queue": "a queue"},
        {"budget": {"max_turns": 3}},
        {"purpose": "training"},
        {"history": 1},
        {"sampling": {"temprature": 1.0}},
    ],
)
def test_a_job_that_cannot_be_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.ContractError, match="job "):
        job(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"task": -1},
            "job of 'shop', task -1: task must be a whole number of at least 0, not -1",
        ),
        ({"task": 3, "seed": 2**53}, "job of 'shop', task 3: seed must be"),
        (
            {"task": 3, "group": "g", "size": 0},
            "job of 'shop', task 3, group g: a group has a size of at least 1",
        ),
        (
            {"task": 3, "group": "g", "run": "r", "size": 0},
            "job r/g/0: a group has a size of at least 1",
        ),
        (
            {"env": "x" * 999, "task": "y" * 999},
            f"job of '{'x' * 59}, task '{'y' * 19}: task must be",
        ),
    ],
)
def test_a_job_without_an_id_is_known_by_its_task(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.ContractError) as caught:
        Job(**{"env": "shop", **wrong})
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "wrong", [{"max_turns": 0}, {"max_tokens": 1.5}, {"max_new_tokens": True}, {"deadline_s": 0}]
)
def test_a_budget_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.ContractError, match="budget"):
        Budget(**wrong)


def test_a_job_is_made_of_plain_values() -> None:
    fields = {"env": "shop", "task": 3, "budget": {"max_turns": 9}}
    assert Job.of(fields) == Job(env="shop", task=3, budget=Budget(max_turns=9))


@pytest.mark.parametrize(
    "wrong",
    [
        {"users": {}},
        {"budget": {"turns": 9}},
        {"budget": 9},
        {"budget": {"max_turns": 0}},
        {"env": None},
        {1: 2},
    ],
)
def test_plain_values_that_are_no_job_are_refused(wrong: dict[Any, Any]) -> None:
    with pytest.raises(errors.ContractError):
        Job.of({"env": "shop", "task": 3, **wrong})


def test_ids_come_apart_again() -> None:
    assert parse_id(job(1).id) == ("r", "g", 1)
    for wrong in (
        "",
        "r/g",
        "r/g/x",
        "r/g/-1",
        "r//0",
        "r/g/0/1",
        "a b/g/0",
        "r/g/²",
        "r/g/00",
        f"r/g/{'9' * 5000}",
        None,
        b"r/g/0",
    ):
        with pytest.raises(errors.ContractError) as caught:
            parse_id(wrong)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 300  # it is logged


def test_viable_means_all_unless_said() -> None:
    assert job().viable == 2
    assert job(min_viable=1).viable == 1


def test_errors_cross_processes() -> None:
    for name in rollq.__all__:
        kind = getattr(rollq, name)
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, errors.RollqError)
            assert str(pickle.loads(pickle.dumps(kind("r/g/0 broke")))) == "r/g/0 broke"
    conflict = errors.JournalConflict("x")
    conflict.length = 3
    assert pickle.loads(pickle.dumps(conflict)).length == 3
    gap = errors.Gap("x")
    gap.cursor = (3, 24, "mark")
    assert pickle.loads(pickle.dumps(gap)).cursor == (3, 24, "mark")


def test_the_package_names_what_it_exports() -> None:
    assert sorted(rollq.__all__) == list(rollq.__all__)
    assert rollq.Client.__name__ == "Client"
    with pytest.raises(AttributeError, match="Trainer"):
        rollq.Trainer  # noqa: B018
    assert rollq.Job is Job


@pytest.mark.parametrize(
    ("statement", "unneeded"),
    [
        ("import rollq.trajectory, rollq.batch", "redis msgpack"),
        ("from rollq import Job, Trajectory", "redis msgpack"),
        (
            "from rollq import Client",
            "redis msgpack kombu rollq_worker requests numpy transformers tokenizers rich",
        ),
        ("import rollq", "dataclasses rollq.job rollq.errors"),
    ],
)
def test_a_trainer_loads_nothing_heavy(statement: str, unneeded: str) -> None:
    code = (
        f"import sys; {statement}; print([m for m in {[*unneeded.split(), 'celery']} if "
        "m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_whole_number_of_numpy_is_an_int() -> None:
    numpy = pytest.importorskip("numpy")
    made = Job(env="shop", task=numpy.int64(3), size=numpy.int32(2))
    assert (type(made.task), made.task, made.size) == (int, 3, 2)
    assert made == Job(env="shop", task=3, size=2)
    for wrong in (numpy.float64(3), numpy.bool_(True), "3", 3.0):
        with pytest.raises(errors.ContractError, match="task must be a whole number"):
            Job(env="shop", task=wrong)


class Name(str, Enum):  # noqa: UP042
    """As programs for Python before 3.11 write it: its str() is another text."""

    RUN = "my-run"
    KEY = "temperature"


def test_the_values_of_an_enum_are_texts(redis_url: str) -> None:
    made = Job(env="shop", task=0, run=Name.RUN, sampling={Name.KEY: 0.5})
    made = replace(made, env_args={Name.RUN: [Name.KEY]})
    assert (made.id, f"{made.run}") == ("my-run//0", "my-run")
    read = decode_job(encode_job(made))
    assert (read.sampling, read.env_args) == ({"temperature": 0.5}, {"my-run": ["temperature"]})
    with Client(redis_url, run=Name.RUN) as client:
        assert f"{client.run}" == "my-run"
