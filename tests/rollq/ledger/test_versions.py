"""Published policies, and how many groups they let in."""

import pytest

from rollq.errors import LedgerError, SettingsError
from rollq.job import Purpose
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Admission, Published
from rollq.ledger.versions import Versions
from tests.rollq.groups import (
    ack,
    deliveries,
    drop_group,
    end_holds,
    finish_groups,
    play_groups,
    take,
)
from tests.rollq.samples import claim, group, reader


@pytest.fixture
def versions(ledger: Ledger) -> Versions:
    return Versions(ledger.redis, ledger.run)


def publish(versions: Versions, step: int, name: str = "") -> int:
    return versions.publish(step, name or str(step), f"token{step}{name}")


def admission(ledger: Ledger) -> Admission:
    found = reader(ledger).standing().admission
    assert found
    return found


def enter(ledger: Ledger, names: str) -> str:
    """Those that got in."""
    return "".join(name for name in names if not ledger.submit(group(name)).full)


def test_the_last_publication_counts(versions: Versions, ledger: Ledger) -> None:
    assert versions.published() is None and reader(ledger).standing().published is None
    assert [publish(versions, 1, "one"), publish(versions, 2, "two")] == [1, 2]
    assert versions.published() == reader(ledger).standing().published == Published(2, "two")
    assert reader(ledger).stats()["policy"] == {"step": 2, "weight_version": "two"}


def test_names_of_versions_have_an_order(versions: Versions) -> None:
    publish(versions, 3, "three")
    publish(versions, 5, "7")
    names = ["three", "7", "8", "default", "²"]
    # A published name counts before its number.
    assert versions.steps(names) == {
        "three": 3,
        "7": 5,
        "8": 8,
    }
    assert versions.steps([]) == {}


def test_weights_with_a_name_that_cannot_be_sent_have_no_step(versions: Versions) -> None:
    """An engine may report one, and a trainer must get the other groups all the same."""
    versions.publish(6, "v6", "token")
    assert versions.steps(["\ud800", "v6"]) == {"v6": 6}
    assert not versions.is_fresh("\ud800", 6)


def test_groups_that_are_open_when_the_trainer_goes_back_began_there(
    versions: Versions, ledger: Ledger
) -> None:
    versions.limit_staleness(3, 0, None)
    publish(versions, 1)
    enter(ledger, "abc")
    finish_groups(ledger, "a")
    claim(ledger, "r/b/0")
    versions.publish(0, "0", "back")
    finish_groups(ledger, "c")
    assert [ledger.redis.hget(ledger.keys.group(name), "started") for name in "abc"] == [
        b"1",
        b"0",
        b"0",
    ]


def test_the_digits_of_a_time_are_no_step(versions: Versions) -> None:
    assert versions.steps(["20261128120000123456", "999999999", "1000000000"]) == {
        "999999999": 999_999_999
    }


def test_an_older_version_keeps_its_step(versions: Versions) -> None:
    for step in (6, 7):
        publish(versions, step, f"v{step}")
    with pytest.raises(SettingsError, match="'v6' is step 6, not 8"):
        publish(versions, 8, "v6")
    assert versions.steps(["v6", "v7"]) == {"v6": 6, "v7": 7}
    versions.publish(6, "v6", "back at the checkpoint")
    assert versions.published() == Published(6, "v6")


def test_a_lost_publication_is_said_again_and_a_known_one_is_not(versions: Versions) -> None:
    publish(versions, 1)
    number = versions.publish(2, "2", "mine")
    versions.publish(3, "3", "of another")
    assert versions.publish(2, "2", "mine", number) == 3  # it was not lost: the other came after it
    assert versions.published() == Published(3, "3")
    versions.redis.hset(
        versions.keys.meta, mapping={"step": 1, "version": "1", "published": 1, "publication": "x"}
    )
    assert versions.publish(2, "2", "mine", number) == 2
    assert versions.published() == Published(2, "2")


def test_admission_is_pinned_for_the_run(versions: Versions, ledger: Ledger) -> None:
    assert reader(ledger).stats()["admission"] is None
    versions.limit_staleness(8, 1, None)
    versions.limit_staleness(8, 1, None)
    said = (
        "run r admits groups for batches of 8 with max_staleness 1 and max_running "
        "None, not 8, 0 and 4"
    )
    with pytest.raises(SettingsError, match=said):
        versions.limit_staleness(8, 0, 4)
    assert admission(ledger) == Admission(8, 1, None, 0, 0, 16)


def test_strictly_on_policy_only_the_batch_of_the_step_is_played(
    versions: Versions, ledger: Ledger
) -> None:
    versions.limit_staleness(2, 0, None)
    assert enter(ledger, "abc") == "ab"
    play_groups(ledger, "a", "b")
    take(ledger, 2, "t")
    assert enter(ledger, "c") == ""
    ack(ledger, "t")
    assert enter(ledger, "c") == ""  # it was trained on, and makes no room
    publish(versions, 1)
    assert enter(ledger, "cde") == "cd"


def test_one_step_ahead(versions: Versions, ledger: Ledger) -> None:
    versions.limit_staleness(2, 1, 3)
    assert enter(ledger, "abcde") == "abc"  # no more are played at a time
    play_groups(ledger, "a")
    assert enter(ledger, "de") == "d"
    assert admission(ledger).capacity == 0


@pytest.mark.parametrize("how", ["drop", "filter", "skip"])
def test_what_is_not_trained_on_makes_room(versions: Versions, ledger: Ledger, how: str) -> None:
    versions.limit_staleness(2, 0, None)
    assert enter(ledger, "abc") == "ab"
    if how == "drop":
        drop_group(ledger, "a")
    else:
        play_groups(ledger, "a", "b")
        take(ledger, 2, "t")
        deliveries(ledger).skip("t", "a", "rewards agree", filling=how == "filter")
    if how == "skip":
        assert enter(ledger, "c") == ""  # the trainer may go on with what it has
        assert take(ledger, 1, "u") == []  # it wants another
    assert enter(ledger, "cd") == "c"


@pytest.mark.parametrize(("wanted", "room"), [(1, "e"), (2, "")])
def test_a_skipped_group_makes_room_when_its_replacement_is_ready(
    versions: Versions, ledger: Ledger, wanted: int, room: str
) -> None:
    versions.limit_staleness(2, 1, None)
    assert enter(ledger, "abcde") == "abcd"
    play_groups(ledger, *"abcd")
    take(ledger, 2, "t")
    deliveries(ledger).skip("t", "a", "rewards agree")
    assert len(take(ledger, wanted, "u")) == wanted  # two are the next batch
    assert len(take(ledger, wanted, "u")) == wanted  # the same again
    assert enter(ledger, "ef") == room


def test_a_short_batch_lets_no_group_in_too_early(versions: Versions, ledger: Ledger) -> None:
    versions.limit_staleness(2, 0, None)
    enter(ledger, "ab")
    play_groups(ledger, "a", "b")
    take(ledger, 2, "t")
    deliveries(ledger).skip("t", "a", "rewards agree")
    publish(versions, 1)
    ack(ledger, "t")
    assert enter(ledger, "cde") == "cd"
    assert admission(ledger).trained == 2


def test_a_place_that_was_left_empty_is_free_until_the_next_publication(
    versions: Versions, ledger: Ledger
) -> None:
    versions.limit_staleness(2, 1, None)
    enter(ledger, "abcd")
    play_groups(ledger, *"abcd")
    take(ledger, 2, "t")
    ack(ledger, "t")
    take(ledger, 2, "u")
    deliveries(ledger).skip("u", "c", "rewards agree")
    publish(versions, 1)  # the trainer went on without it
    ack(ledger, "u")
    assert take(ledger, 1, "v") == []
    assert enter(ledger, "efg") == "ef"


def test_evaluation_is_not_bounded(versions: Versions, ledger: Ledger) -> None:
    versions.limit_staleness(1, 0, 1)
    for name in "efg":
        assert not ledger.submit(group(name, purpose=Purpose.EVAL)).full
    assert enter(ledger, "ab") == "a"
    play_groups(ledger, "e", "f", "g")
    assert len(take(ledger, 3, "t", purpose=Purpose.EVAL)) == 3
    ack(ledger, "t")
    assert admission(ledger).trained == 0


@pytest.mark.parametrize("step", [1000, 999_999_999])
@pytest.mark.parametrize("admitted", ["before", "after"])
def test_a_run_that_begins_at_a_late_step_is_bounded_too(
    versions: Versions, ledger: Ledger, admitted: str, step: int
) -> None:
    """Whether admission is pinned before the first publication or after it."""
    if admitted == "before":
        versions.limit_staleness(2, 1, None)
    publish(versions, step)
    versions.limit_staleness(2, 1, None)
    assert enter(ledger, "abcdefgh") == "abcd"
    play_groups(ledger, "a", "b")
    take(ledger, 2, "t")
    assert enter(ledger, "efgh") == ""  # they would be too old when the trainer comes to them
    publish(versions, step + 1)
    ack(ledger, "t")
    assert enter(ledger, "efgh") == "ef"


def test_groups_go_in_the_order_of_submission_and_a_batch_at_a_time(
    versions: Versions, ledger: Ledger
) -> None:
    versions.limit_staleness(2, 1, None)
    enter(ledger, "abcd")
    play_groups(ledger, "b", "c", "d")
    assert take(ledger, 2, "t") == []
    play_groups(ledger, "a")
    assert [taken.id for taken in take(ledger, 2, "t")] == ["a", "b"]
    with pytest.raises(SettingsError, match="3 groups is more than the 2"):
        take(ledger, 3, "u")


def test_a_group_knows_under_which_step_it_began(versions: Versions, ledger: Ledger) -> None:
    finish_groups(ledger, "a")
    ledger.submit(group("b"))
    publish(versions, 4)
    claim(ledger, "r/b/0")
    ledger.release("r/b/0", "1#token")
    publish(versions, 5)
    play_groups(ledger, "b")
    assert [taken.started for taken in take(ledger, 2, "t")] == [None, 4]
    assert deliveries(ledger).take(2, "t").policy_step == 5


def test_a_group_that_a_dead_consumer_held_for_too_long_is_skipped(
    versions: Versions, ledger: Ledger
) -> None:
    versions.limit_staleness(1, 1, None)
    enter(ledger, "abc")
    play_groups(ledger, "a", "b")
    take(ledger, 1, "dead")
    end_holds(ledger, "a")
    publish(versions, 1)
    publish(versions, 2)
    enter(ledger, "c")
    play_groups(ledger, "c")
    found = [deliveries(ledger).take(1, "t") for _ in range(3)]  # as many at a time as are wanted
    assert [taken.unread for taken in found] == [True, True, False]
    assert [taken.id for taken in found[-1].groups] == ["c"]
    assert reader(ledger).stats()["skips"] == {"stale": 2}
    assert reader(ledger).group_states(["a", "b"]) == ["dropped"] * 2
    # As when the run forgets it; then it is a new group.
    ledger.redis.delete(ledger.keys.acked("b"))
    publish(versions, 3)
    enter(ledger, "b")
    assert reader(ledger).group_states(["a", "b"]) == ["dropped", "open"]
    assert ledger.redis.smembers(ledger.keys.stale) == {b"a"}


def test_a_dropped_group_does_not_come_back(versions: Versions, ledger: Ledger) -> None:
    versions.limit_staleness(2, 0, None)
    enter(ledger, "ab")
    DeadLetters(ledger.redis, "r").cancel("r/b/0")
    DeadLetters(ledger.redis, "r").requeue("r/b/0")  # its group is still in its place
    drop_group(ledger, "a")
    with pytest.raises(
        LedgerError, match=r"r/a/0 cannot be requeued: its group was dropped, .*Client\.refill"
    ):
        DeadLetters(ledger.redis, "r").requeue("r/a/0")


def test_a_key_of_another_type_is_named(versions: Versions, ledger: Ledger) -> None:
    ledger.redis.set(f"{ledger.keys.prefix}versions", "x")
    with pytest.raises(LedgerError, match=r"rollq:\{r\}:versions is a string"):
        publish(versions, 1)
    with pytest.raises(LedgerError, match="versions"):
        versions.steps(["1"])
    assert versions.published() is None
