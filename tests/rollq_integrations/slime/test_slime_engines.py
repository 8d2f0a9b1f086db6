"""slime's engines: the step of the weights that they serve, and their addresses for the workers."""

import threading

import pytest

from rollq import Client
from rollq.errors import SettingsError, SyncError
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Published
from rollq.ledger.workers.engine_addresses import read_addresses
from rollq_integrations.slime import engines
from tests.ledger_of import ledger_of
from tests.rollq.groups import finish_groups, play_groups
from tests.rollq.samples import group
from tests.rollq.weights.fake_engines import FakeEngine, serving
from tests.rollq_integrations.slime.conftest import Make, jobs, members, rollout
from tests.rollq_integrations.slime.slime_packages import arguments


def test_the_policy_of_slimes_engines_is_published(
    source: Make, engine: FakeEngine, ledger: Ledger
) -> None:
    finish_groups(ledger, *"abcd")
    made = source()
    for step in range(2):
        engine.version = str(step + 1)
        rollout(made, step)
        published = made.client.published()
        assert published is not None
        assert (published.step, published.weight_version) == (step, str(step + 1))


def test_admission_goes_on_with_each_rollout(
    source: Make, engine: FakeEngine, ledger: Ledger
) -> None:
    made = source()
    made.client.limit_staleness(groups_per_batch=2, max_staleness=0)
    entered: list[str] = []

    def produce() -> None:
        with Client(made.settings.redis_url, run="r") as client:
            for name in "abcd":
                client.submit(group(name))
                play_groups(ledger, name, version=engine.version)
                entered.append(name)

    producer = threading.Thread(target=produce)
    producer.start()
    assert jobs(rollout(made, 0)) == members("a", "b")
    assert entered == ["a", "b"]  # there is room for no more before the next policy
    engine.version = "2"
    assert jobs(rollout(made, 1)) == members("c", "d")
    producer.join()


@pytest.mark.parametrize(
    ("version", "first", "interval", "step"),
    [
        (1, 0, 1, 0),
        (4, 0, 1, 3),
        (9, 8, 1, 8),
        (11, 8, 1, 10),
        (1, 0, 3, 0),
        (2, 0, 3, 3),
        (3, 7, 3, 6),
        (4, 7, 3, 9),
    ],
)
def test_the_step_of_a_version_is_the_number_of_rollouts_it_was_trained_on(
    version: int, first: int, interval: int, step: int
) -> None:
    args = arguments(
        update_weights_interval=interval, update_weight_start_version=first // interval
    )
    assert engines.step_of(version, first, args) == step


def test_a_restart_between_two_updates_goes_on(
    source: Make, engine: FakeEngine, ledger: Ledger
) -> None:
    finish_groups(ledger, *"abcdefghijkl")
    first = source(update_weights_interval=3)
    for step in range(5):
        engine.version = "1" if step < 3 else "2"
        rollout(first, step)
    first.save(3)
    second = source(after=3, update_weights_interval=3, update_weight_start_version=1)
    assert jobs(rollout(second, 4)) == members(
        "i", "j"
    )  # version 2 again, and it is still that of step 3
    assert second.client.published() == Published(3, "2")


def test_the_same_version_for_another_step_is_refused(source: Make, ledger: Ledger) -> None:
    finish_groups(ledger, *"abcd")
    first = source()
    rollout(first, 0)
    first.save(0)
    with pytest.raises(SettingsError, match=r"update_weight_start_version: 1"):
        rollout(source(after=0), 1)  # slime's engines serve version 1 again


def test_an_interval_that_train_py_does_not_keep_is_refused(
    source: Make, engine: FakeEngine, ledger: Ledger
) -> None:
    finish_groups(ledger, *"abcd")
    made = source(update_weights_interval=2)
    rollout(made, 0)
    engine.version = "2"  # after one rollout
    with pytest.raises(
        SettingsError, match=r"version 2 would be of step 2, and slime has trained on 1 rollouts"
    ):
        rollout(made, 1)


def test_workers_are_told_slimes_engines(source: Make, engine: FakeEngine, ledger: Ledger) -> None:
    finish_groups(ledger, *"ab")
    made = source(rollq_engines="pool")
    redis = ledger_of(made.client).redis
    redis.sadd("rollq:engines:pool", "http://gone:1")
    rollout(made, 0)
    assert read_addresses(redis, "pool") == [engine.url]


def test_engines_that_do_not_agree_are_an_error(
    source: Make, engine: FakeEngine, ledger: Ledger
) -> None:
    finish_groups(ledger, *"ab")
    other = FakeEngine()
    other.version = "7"
    with serving(other):
        engine.answers["/workers"] = (200, {"workers": [{"url": engine.url}, {"url": other.url}]})
        with pytest.raises(SyncError, match="serve no common version"):
            rollout(source(), 0)


def test_engines_without_a_version_of_slimes_are_an_error(source: Make, engine: FakeEngine) -> None:
    engine.version = "default"
    with pytest.raises(SyncError, match=r"version of slime's \(a whole number\): .*'default'"):
        rollout(source(), 0)


def test_a_router_that_lists_nothing_is_an_error(source: Make, engine: FakeEngine) -> None:
    engine.answers["/workers"] = (404, "")
    with pytest.raises(SyncError, match=r"/workers does not list its engines: .*HTTP 404"):
        rollout(source(), 0)
