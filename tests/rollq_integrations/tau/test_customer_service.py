"""The customer-service conversation, the same for the shop and both tau benchmarks."""

import threading
import time
from types import MappingProxyType

import pytest

from rollq.env import STOP_MARKER, Action, Observation
from rollq.env.customer_service import ConversationDomain
from rollq.errors import EnvironmentFailure, JobFailure, UserFailure
from rollq_worker.fakes import FakeUser
from tests.rollq_worker.environments.episodes import begin, play, respond

pytestmark = pytest.mark.packages


def test_a_reply_with_the_stop_marker_ends_the_episode(any_domain: ConversationDomain) -> None:
    environment = begin(any_domain, 0, "go on", f"so {STOP_MARKER} then")
    assert environment.step(respond("hi")) == Observation("go on")
    assert environment.step(respond("hi")) == Observation(f"so {STOP_MARKER} then", done=True)


@pytest.mark.parametrize("arguments", [{}, {"content": None}, {"content": 3}])
def test_a_respond_without_a_text_is_an_observation(
    any_domain: ConversationDomain, arguments: dict[str, object]
) -> None:
    environment = begin(any_domain, 0, "go on")
    action = Action("respond", arguments)
    assert environment.step(action) == Observation("Error: respond needs a text as its content")


def test_a_user_who_says_no_text_is_a_user_failure(any_domain: ConversationDomain) -> None:
    class Mute(FakeUser):
        def open(self) -> str:
            return None  # type: ignore[return-value]

        def reply(self, message: str) -> str:
            return None  # type: ignore[return-value]

    with pytest.raises(UserFailure, match="the user said NoneType"):
        any_domain.open("test", 0, {}).reset(Mute())
    environment = begin(any_domain)
    environment._user = Mute()
    with pytest.raises(UserFailure, match="the user said NoneType"):
        environment.step(respond("hi"))


def test_nothing_happens_before_the_reset(any_domain: ConversationDomain) -> None:
    environment = any_domain.open("test", 0, {})
    with pytest.raises(EnvironmentFailure, match="step of an episode that is new"):
        environment.step(any_domain.task("test", 0).moves[0])
    with pytest.raises(EnvironmentFailure, match="graded before its reset"):
        environment.grade()


def test_a_finished_episode_is_frozen(any_domain: ConversationDomain) -> None:
    task, environment = any_domain.task("test", 0), begin(any_domain)
    with pytest.raises(EnvironmentFailure, match="reset of an episode that is running"):
        environment.reset(FakeUser())
    assert environment.step(respond("hi")).done
    for move in task.moves:
        with pytest.raises(EnvironmentFailure, match=f"{task.id}: step of an episode that is done"):
            environment.step(move)
    assert environment.grade().reward == 0.0
    with pytest.raises(EnvironmentFailure, match="graded twice"):
        environment.grade()
    with pytest.raises(EnvironmentFailure, match="reset of an episode that is graded"):
        environment.reset(FakeUser())


@pytest.mark.parametrize("index", [-1, 10_000, "0", 1.0, True])
def test_a_task_or_split_that_does_not_exist_is_refused(
    any_domain: ConversationDomain, index: int
) -> None:
    size = any_domain.splits()["test"]
    assert any_domain.task("test", size - 1)
    for ask in (any_domain.task, lambda split, index: any_domain.open(split, index, {})):
        for wrong in (index, size):
            with pytest.raises(
                JobFailure, match=f"split 'test' has tasks 0 to {size - 1}, not {wrong!r}"
            ):
                ask("test", wrong)
        with pytest.raises(
            JobFailure, match=f"no split 'valid'; it has {', '.join(any_domain.splits())}"
        ):
            ask("valid", 0)


def test_env_args_are_refused(any_domain: ConversationDomain) -> None:
    with pytest.raises(JobFailure, match="takes no env_args, not colour, size"):
        any_domain.open("test", 0, MappingProxyType({"size": 1, "colour": "red"}))


def test_the_ground_truth_is_worked_out_once_for_all_threads(
    any_domain: ConversationDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, replayed = any_domain.backend.replay, []

    def slow(view, calls):  # type: ignore[no-untyped-def]
        replayed.append(calls)
        time.sleep(0.02)
        replay(view, calls)

    def run() -> None:
        barrier.wait(30)
        grades.append(play(any_domain, "test", 1, any_domain.task("test", 1).moves)[0].reward)

    monkeypatch.setattr(any_domain.backend, "replay", slow)
    monkeypatch.setattr(any_domain.backend, "_expected", {})
    grades: list[float] = []
    barrier = threading.Barrier(64)
    threads = [threading.Thread(target=run) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert grades == [1.0] * 64
    assert len(replayed) == 1
