"""slime's rollout function and data source on the real ledger, called as slime's RolloutManager
calls them.
"""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rollq import Job
from rollq.errors import ContractError, FunctionError, LedgerError, MissingGroups, SettingsError
from rollq.ledger.evaluations import EvaluationStore
from rollq.ledger.ledger import Ledger
from rollq_integrations.slime import generate_rollout
from rollq_integrations.slime.rollout import SlimeSettings
from tests.rollq.groups import drop_group, finish_groups, play_groups
from tests.rollq.samples import group, play, reader
from tests.rollq.weights.fake_engines import FakeEngine
from tests.rollq_integrations.player import playing
from tests.rollq_integrations.slime.conftest import Make, jobs, members, rollout
from tests.waiting import until

FILTERS = "tests.rollq_integrations.slime.slime_filters"


def test_groups_come_whole_and_in_the_order_of_submission(source: Make, ledger: Ledger) -> None:
    for name in "abcd":
        ledger.submit(group(name))
    play_groups(ledger, "d", "b")
    made = source()

    def play_the_rest() -> None:
        until(
            lambda: reader(ledger).standing().wanted
        )  # slime waits, although two groups are ready
        play_groups(ledger, "c", "a")

    worker = threading.Thread(target=play_the_rest)
    worker.start()
    assert [jobs(rollout(made, step)) for step in range(2)] == [
        members("a", "b"),
        members("c", "d"),
    ]
    worker.join()


def test_the_data_source_is_of_no_use_to_slimes_own_rollout_function(source: Make) -> None:
    made = source()
    with pytest.raises(
        SettingsError, match=r"--rollout-function-path rollq_integrations.slime.generate_rollout"
    ):
        made.get_samples(2)
    with pytest.raises(ContractError, match="none can be put back"):
        made.add_samples([])


def test_a_short_group_never_reaches_slime(source: Make, ledger: Ledger) -> None:
    ledger.submit(group("a"))
    ledger.submit(group("b", min_viable=1))
    ledger.submit(group("c"))
    drop_group(ledger, "b")  # it would be handed out with one sample
    play_groups(ledger, "a", "c")
    made = source()
    output = rollout(made, 0)
    assert jobs(output) == members("a", "c")
    assert output.metrics["rollout/dynamic_filter/drop_short"] == 1
    assert made.client.stats()["groups_skipped"] == 1


def test_a_restart_from_a_checkpoint_trains_on_the_same_samples(
    source: Make, ledger: Ledger
) -> None:
    finish_groups(ledger, *"abcdefgh")
    first = source()
    before = [rollout(first, step).samples for step in range(3)]
    first.save(0)  # killed before the next checkpoint
    second = source(after=0, update_weight_start_version=1)
    again = [rollout(second, step).samples for step in range(1, 4)]
    assert again[:2] == before[1:]
    assert [[sample.metadata["job"] for sample in one] for one in again[2]] == members("g", "h")
    second.save(3)
    stats = second.client.stats()
    assert (stats["groups_acked"], stats["groups_held"]) == (8, 0)


def test_a_key_without_a_value_is_the_default(source: Make) -> None:
    made = source(rollq_consumer=None, rollq_traces=None, rollq_eval_job=None)
    assert made.settings == SlimeSettings(run="r", redis_url=made.settings.redis_url)


def test_a_restart_before_the_first_checkpoint_begins_with_the_first_rollout(
    source: Make, ledger: Ledger
) -> None:
    finish_groups(ledger, *"abcd")
    before = rollout(source(), 0).samples
    second = source(after=-1)
    assert rollout(second, 0).samples == before
    assert jobs(rollout(second, 1)) == members("c", "d")


def test_a_checkpoint_older_than_the_last_acknowledged_is_refused(
    source: Make, ledger: Ledger
) -> None:
    finish_groups(ledger, *"abcdef")
    first = source()
    for step in range(2):
        rollout(first, step)
    first.save(1)
    with pytest.raises(LedgerError, match="has acknowledged up to step 1"):
        source(after=0)
    with pytest.raises(LedgerError, match="is at rollout 2, and slime asks for 0"):
        rollout(source(after=-1), 0)


def test_slimes_filter_chooses_and_the_rollout_is_filled_up(source: Make, ledger: Ledger) -> None:
    finish_groups(ledger, "a", "b", reward=1.0)
    ledger.submit(group("c"))
    play(ledger, "r/c/0", reward=0.0)
    play(ledger, "r/c/1", reward=1.0)
    ledger.submit(group("d"))
    play(ledger, "r/d/0", reward=1.0)
    play(ledger, "r/d/1", reward=0.0)
    made = source(dynamic_sampling_filter_path=f"{FILTERS}.rewards_differ")
    output = rollout(made, 0)
    assert jobs(output) == members("c", "d")
    assert output.metrics["rollout/dynamic_filter/drop_zero_std_1.0"] == 2
    assert made.client.stats()["skips"] == {"DataSource.dynamic_sampling_filter": 2}


def test_a_filter_that_keeps_what_is_needed_drops_only_what_was_asked_for_in_excess(
    source: Make, ledger: Ledger
) -> None:
    finish_groups(ledger, *"abcd", reward=1.0)
    path = f"{FILTERS}.rewards_differ_if_there_are_more"
    for _ in range(2):  # after a restart, too
        made = source(dynamic_sampling_filter_path=path, over_sampling_batch_size=3)
        assert jobs(rollout(made, 0)) == members("b", "c")


def test_a_filter_may_answer_with_a_bool(source: Make, ledger: Ledger) -> None:
    finish_groups(ledger, "a", reward=0.0)
    finish_groups(ledger, "b", "c", reward=1.0)
    made = source(dynamic_sampling_filter_path=f"{FILTERS}.plain_bool")
    assert jobs(rollout(made, 0)) == members("b", "c")


def test_the_filter_of_samples_is_called(source: Make, ledger: Ledger) -> None:
    finish_groups(ledger, "a", reward=0.0)
    finish_groups(ledger, "b", reward=1.0)
    output = rollout(source(rollout_sample_filter_path=f"{FILTERS}.drop_the_losers"), 0)
    assert [[sample.remove_sample for sample in one] for one in output.samples] == [
        [True, True],
        [False, False],
    ]


def rollout_length(trajectory: Any) -> float:
    return float(len(trajectory.tokens))


def test_a_reward_function_of_the_trainer_takes_the_place_of_the_environments(
    source: Make, ledger: Ledger
) -> None:
    finish_groups(ledger, *"ab")
    output = rollout(source(rollq_reward=f"{__name__}:rollout_length"), 0)
    assert {sample.reward for one in output.samples for sample in one} == {11.0}


@pytest.mark.parametrize(
    ("of_jobs", "of_slime", "said"),
    [
        ({}, {"n_samples_per_prompt": 8}, "jobs have 2, and slime's --n-samples-per-prompt is 8"),
        (
            {"sampling": {"temperature": 0.7}},
            {},
            r"jobs have 0\.7, and slime's --rollout-temperature is 1\.0",
        ),
        ({"sampling": {"top_p": 0.8}}, {}, r"jobs have 0\.8, and slime's --rollout-top-p is 1\.0"),
        ({"sampling": {"top_k": 5}}, {}, "jobs have 5, and slime's --rollout-top-k is -1"),
        ({}, {"rollout_top_k": 5}, "jobs have -1, and slime's --rollout-top-k is 5"),
        (
            {"sampling": {"temperature": 0.7, "top_p": 1.0, "top_k": 5}},
            {"rollout_temperature": 0.7, "rollout_top_k": 5},
            "",
        ),
    ],
)
def test_jobs_must_be_those_that_slime_computes_with(
    source: Make, ledger: Ledger, of_jobs: dict[str, Any], of_slime: dict[str, Any], said: str
) -> None:
    finish_groups(ledger, *"ab", **of_jobs)
    if said:
        with pytest.raises(FunctionError, match=said):
            rollout(source(**of_slime), 0)
    else:
        assert jobs(rollout(source(**of_slime), 0)) == members("a", "b")


def test_another_batch_size_after_a_restart_is_refused(source: Make, ledger: Ledger) -> None:
    finish_groups(ledger, *"abcd")
    rollout(source(), 0)
    with pytest.raises(LedgerError, match="took 2 groups for rollout 0 before it was restarted"):
        rollout(source(rollout_batch_size=4), 0)


@pytest.mark.parametrize(
    ("groups", "said"),
    [("abc", "1 of 2 groups missing"), ("ab", "run r is sealed and has no more groups")],
)
def test_the_end_of_a_sealed_run_is_told(
    source: Make, ledger: Ledger, groups: str, said: str
) -> None:
    finish_groups(ledger, *groups, seal=True)
    made = source()
    rollout(made, 0)
    made.save(0)
    with pytest.raises(MissingGroups, match=said):
        rollout(made, 1)
    assert len(made) == len(groups)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rollout_top_p": 0.9},
            r"slime's --rollout-top-p must be 1.0 with rollq, not 0.9: slime trains on",
        ),
        ({"async_save": True}, "at its checkpoint, which is not whole yet then"),
        (
            {"update_weight_mode": "delta"},
            "--update-weight-mode must be 'full' with rollq, not 'delta': the first",
        ),
        (
            {"debug_rollout_only": True},
            "--debug-rollout-only must be False with rollq, not True: slime tells",
        ),
        ({"custom_generate_function_path": "mine.generate"}, "rollq's workers play the episodes"),
        (
            {"custom_rm_path": "mine.reward"},
            "the environment grades, or the function that rollq_reward names",
        ),
        ({"rollout_global_dataset": False}, "leave out --disable-rollout-global-dataset"),
        (
            {"rollq_runs": "r"},
            "slime's arguments have rollq_runs; rollq knows rollq_run, rollq_redis_url",
        ),
        ({"rollq_run": ""}, "put `rollq_run: NAME` into the file of slime's --custom-config-path"),
        (
            {"rollq_eval_job": "shop"},
            "rollq_eval_job must be a mapping of fields of rollq.Job, .* not 'shop'",
        ),
        (
            {"rollq_eval_job": {"sampling": None}},
            "rollq_eval_job must be .* and its sampling a mapping",
        ),
    ],
)
def test_what_slime_cannot_do_with_rollq_is_refused_at_the_start(
    source: Make, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        source(**changes)


def test_the_data_source_must_be_rollqs(source: Make) -> None:
    with pytest.raises(
        SettingsError, match=r"--data-source-path rollq_integrations.slime.DataSource"
    ):
        generate_rollout(source().args, 0, object())


def test_an_evaluation_before_and_after_the_first_rollout_are_two(
    source: Make, engine: FakeEngine, ledger: Ledger, redis_url: str
) -> None:
    made = source(
        eval_datasets=[held_out("shop/test/0-2")], rollq_eval_job={"budget": {"max_turns": 9}}
    )
    with playing(redis_url):
        for version in ("1", "2"):
            engine.version = version
            output = generate_rollout(
                made.args, 0, made, evaluation=True
            )  # slime counts both as rollout 0
            assert len(output.data["held-out"]["rewards"]) == 6
            assert output.data["held-out"]["truncated"] == [False] * 6
            assert (
                generate_rollout(made.args, 0, made, evaluation=True).data == output.data
            )  # played once
    stored = {
        name: EvaluationStore(ledger.scripts).load(name) for name in ("held-out-0", "held-out-1")
    }
    assert {name: found and found.version for name, found in stored.items()} == {
        "held-out-0": "1",
        "held-out-1": "2",
    }


def test_a_wrong_field_of_an_evaluations_jobs_is_told_at_the_start(source: Make) -> None:
    with pytest.raises(ContractError, match="unexpected keyword argument 'users'"):
        source(eval_datasets=[held_out("shop/test/0")], rollq_eval_job={"users": {}})


@pytest.mark.parametrize("path", ["/data/aime.jsonl", "shop/test", "shop/test/5-2"])
def test_a_wrong_path_of_an_evaluation_is_told_at_the_start(source: Make, path: str) -> None:
    with pytest.raises(
        SettingsError,
        match=f"--eval-prompt-data held-out {path}: the path .* is ENV/SPLIT/FIRST-LAST",
    ):
        source(eval_datasets=[held_out(path)])
    source(
        eval_datasets=[held_out(path)],
        eval_function_path="slime.rollout.sglang_rollout.generate_rollout",
    )


def test_sampling_of_an_evaluations_jobs_is_added_to_slimes(source: Make, redis_url: str) -> None:
    made = source(
        eval_datasets=[held_out("shop/test/0")], rollq_eval_job={"sampling": {"min_p": 0.1}}
    )
    with playing(redis_url):
        generate_rollout(made.args, 0, made, evaluation=True)
    task = Job(env="shop", split="test", task=0, sampling={"temperature": 0.0, "min_p": 0.1})
    same = made.client.evaluate([task], 2, "1", name="held-out-0")  # refused for other jobs
    assert len(same.result().tries) == 2


def held_out(path: str) -> SimpleNamespace:
    """A data set of slime's --eval-prompt-data."""
    return SimpleNamespace(
        name="held-out",
        path=path,
        n_samples_per_eval_prompt=2,
        temperature=0.0,
        top_p=None,
        top_k=None,
    )
