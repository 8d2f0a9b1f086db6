"""verl's agent loop, called as verl's workers call it, on the real ledger: by the recorded
contract, and on verl's own classes where verl is installed.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollq.errors import ContractError, JobConflict, LedgerError, RolloutFailure, SettingsError
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import State
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import ROUTED_EXPERTS
from rollq.wire.routed_experts import routed_experts
from rollq_worker.tokens.tokenizer import BUNDLED
from tests.rollq.agent_episodes import branching, rewarded_apart
from tests.rollq.routed_experts import ASKED, routed
from tests.rollq.samples import job, play, reader, trajectory
from tests.rollq.token_rows import episode, logprob_of, sampled_id
from tests.rollq_integrations.verl_contract import GIVEN, OUTPUT, check, is_installed, verl_package

pytestmark = pytest.mark.packages

Make = Callable[..., Any]
SAMPLING = {
    "temperature": 0.7,
    "top_p": 1.0,
    "top_k": -1,
    "repetition_penalty": 1.0,
    "logprobs": True,
}
"""What verl gives to `run`."""


@pytest.fixture(params=["recorded", "own"])
def verl(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """rollq's adapter."""
    own = request.param == "own"
    if own and not is_installed():
        pytest.skip("verl is not installed")
    with verl_package(own) as adapter:
        yield adapter


@pytest.fixture
def loop(verl: ModuleType, redis_url: str) -> Iterator[Make]:
    """Makes an agent loop, as verl does for every session. `fresh`: in a process of its own."""
    from transformers import AutoTokenizer  # seconds, where torch is installed

    tokenizer, made = AutoTokenizer.from_pretrained(str(BUNDLED)), []

    def make(
        fresh: bool = False, save_freq: int = 2, threshold: int | None = 8, **changes: Any
    ) -> Any:
        if fresh:
            verl.episodes.cache_clear()
        rollout = SimpleNamespace(prompt_length=512, response_length=1024)
        sampler = SimpleNamespace(max_off_policy_threshold=threshold)
        trainer = SimpleNamespace(save_freq=save_freq, v1=SimpleNamespace(sampler=sampler))
        config = SimpleNamespace(
            trainer=trainer, actor_rollout_ref=SimpleNamespace(rollout=rollout)
        )
        wrapped, data = SimpleNamespace(config=config), SimpleNamespace(config={})
        given = {
            "run": "r",
            "redis_url": redis_url,
            "job": {"env": "shop", "budget": {"max_turns": 20}},
            **changes,
        }
        made.append(
            verl.RollqAgentLoop(wrapped, None, tokenizer, None, None, data, "qwen3", **given)
        )
        return made[-1]

    yield make
    for episodes in {one._episodes for one in made}:
        episodes.close()


def row(uid: str = "u", session: int = 0, step: int = 1, task: int = 7) -> dict[str, Any]:
    """The fields that verl's V1 trainer gives to `run`."""
    fields = {
        "uid": uid,
        "session_id": session,
        "global_steps": step,
        "extra_info": {"rollq": {"task": task}},
    }
    assert set(fields) == set(GIVEN)
    return {**fields, "raw_prompt": [], "data_source": "shop"}


async def submitted(ledger: Ledger, job_id: str) -> None:
    while await asyncio.to_thread(reader(ledger).job, job_id) is None:
        await asyncio.sleep(0.01)


async def answered(
    ledger: Ledger, waiting: Awaitable[Any], job_id: str = "r/u.0/0", reward: float = 1.0
) -> Any:
    """A session whose job a worker plays once it is there."""
    asked = asyncio.ensure_future(waiting)
    await submitted(ledger, job_id)
    if (await asyncio.to_thread(reader(ledger).job, job_id)).state == State.QUEUED:  # type: ignore[union-attr]
        await asyncio.to_thread(play, ledger, job_id, reward)
    return await asked


async def session(loop: Make, fields: dict[str, Any], sampling: dict[str, Any] = SAMPLING) -> Any:
    """As verl runs one: the agent loop is made in the event loop."""
    return await loop().run(sampling, **fields)


async def played(ledger: Ledger, loop: Make, fields: dict[str, Any], reward: float = 1.0) -> Any:
    job_id = f"r/{fields['uid']}.{fields['session_id']}/0"
    return await answered(ledger, session(loop, fields), job_id, reward)


def test_an_episode_becomes_an_output(loop: Make, ledger: Ledger) -> None:
    output = asyncio.run(played(ledger, loop, row(), reward=0.5))
    check(output.model_dump() if hasattr(output, "model_dump") else output)
    assert (output.prompt_ids, output.response_ids) == ([1, 2, 3], [7, 8, 4, 5, 7, 8, 4, 5])
    assert output.response_mask == [1, 1, 0, 0, 1, 1, 0, 0]
    assert output.response_logprobs == [-0.5, -0.5, 0.0, 0.0, -0.5, -0.5, 0.0, 0.0]
    assert (output.reward_score, output.num_turns) == (0.5, 4)


@pytest.mark.parametrize("verl", ["own"], indirect=True)
def test_verl_puts_the_reward_on_the_last_token(verl: ModuleType) -> None:
    [output] = verl.as_outputs(trajectory(0.5), step=1)
    tensors = verl.AgentLoopOutput(**output).as_dict()
    assert tensors["rm_scores"].tolist() == [0.0] * 7 + [0.5]
    assert tensors["response_mask"].tolist() == output["response_mask"]
    assert tensors["rollout_log_probs"].tolist() == output["response_logprobs"]


def test_the_recorded_fields_are_verls(verl: ModuleType) -> None:
    fields = getattr(verl.AgentLoopOutput, "model_fields", OUTPUT)
    assert set(fields) >= set(OUTPUT)


def test_each_token_has_what_is_true_of_it(verl: ModuleType) -> None:
    made = episode([(3, [([2], 2), ([1, 3], 0)]), (5, [([2], 0)])], itertools.count())
    outputs = verl.as_outputs(made, step=4)
    assert len(outputs) == 2  # a row for each trace
    for output in outputs:
        check(output)
        assert output["response_mask"] == [
            int(sampled_id(token)) for token in output["response_ids"]
        ]
        assert output["response_logprobs"] == [
            logprob_of(token) for token in output["response_ids"]
        ]
    assert [
        token for output in outputs for token in output["prompt_ids"] + output["response_ids"]
    ] == list(made.tokens)


def with_experts(asked: Trajectory) -> Trajectory:
    """The same as a trainer gets it that asks for its routed experts."""
    asked = replace(asked, events=routed(asked.events))
    return replace(asked, extras={ROUTED_EXPERTS: routed_experts(asked)})


def test_chosen_traces_are_the_outputs(verl: ModuleType) -> None:
    played = with_experts(replace(branching(), job=job(routed_experts=ASKED)))
    every, [main] = verl.as_outputs(played, 4), verl.as_outputs(played, 4, "main")
    helpers = verl.as_outputs(played, 4, lambda segments: segments[1:])
    assert [each["response_ids"] for each in (main, *helpers)] == [
        each["response_ids"] for each in every
    ]
    for each, same in zip((main, *helpers), every, strict=True):
        assert (each["routed_experts"] == same["routed_experts"]).all()


def test_routed_experts_have_a_row_for_each_token(verl: ModuleType) -> None:
    played = with_experts(trajectory(of=job(routed_experts=ASKED)))
    [output] = verl.as_outputs(played, step=1)
    tokens = len(output["prompt_ids"]) + len(output["response_ids"])
    assert (
        output["routed_experts"].shape == (tokens, 2, 2)
        and str(output["routed_experts"].dtype) == "int32"
    )
    assert verl.AgentLoopOutput(**output).routed_experts is not None
    [plain] = verl.as_outputs(replace(played, extras={}), step=1)
    assert "routed_experts" not in plain


def test_versions_are_steps(verl: ModuleType) -> None:
    made = trajectory()  # sampled by version "1"
    assert steps(verl.as_outputs(made, step=9)) == (1, 1)
    unnamed = episode([(3, [([2], 0)])], itertools.count())  # by "step-0"
    assert steps(verl.as_outputs(unnamed, step=9)) == (8, 8)


def steps(outputs: list[dict[str, Any]]) -> tuple[int, int]:
    [extra] = [output["extra_fields"] for output in outputs]
    return extra["min_global_steps"], extra["max_global_steps"]


def test_an_episode_in_which_nothing_was_sampled_is_refused(verl: ModuleType) -> None:
    with pytest.raises(ContractError, match="the policy sampled nothing"):
        verl.as_outputs(episode([(3, [])], itertools.count()), step=1)


def test_the_job_has_verls_sampling_and_lengths(loop: Make, ledger: Ledger) -> None:
    job = {"env": "shop", "split": "test", "budget": {"max_turns": 9}}
    asyncio.run(played(ledger, partial(loop, job=job), row(task=3)))
    state = reader(ledger).job("r/u.0/0")
    assert state is not None and state.job is not None
    found = state.job
    assert (found.env, found.split, found.task, found.size) == ("shop", "test", 3, 1)
    assert (found.budget.max_turns, found.budget.max_tokens) == (9, 1536)
    assert found.sampling == {
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
    }


def test_the_nulls_that_parquet_puts_into_a_row_are_not_of_the_job(loop: Make) -> None:
    task = {"task": 7, "user": None, "budget": {"max_turns": 5, "deadline_s": None}}
    task["env_args"] = {"a": [{"b": 1, "c": None}], "d": None}
    job = loop()._as_job(SAMPLING, {"extra_info": {"rollq": task}}, "g")
    assert (job.budget.max_turns, job.env_args) == (5, {"a": [{"b": 1}]})


def test_a_key_without_a_value_is_left_out(loop: Make) -> None:
    job = {"env": "shop", "budget": None, "sampling": None}
    made = loop(job=job)._as_job(SAMPLING, row(), "g")
    assert (made.budget.max_tokens, made.sampling["temperature"]) == (1536, 0.7)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ("shop", "job of verl's agent loop must be a mapping, not 'shop'"),
        ({"env": "shop", "budget": 20}, "budget of verl's agent loop must be a mapping, not 20"),
        ({"env": "shop", "sampling": ["min_p"]}, "sampling of verl's agent loop must be a mapping"),
    ],
)
def test_a_job_that_is_none(loop: Make, job: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        loop(job=job)._as_job(SAMPLING, row(), "g")


def test_sampling_parameters_that_verl_computes_with_are_verls(loop: Make, ledger: Ledger) -> None:
    asyncio.run(
        played(ledger, partial(loop, job={"env": "shop", "sampling": {"min_p": 0.1}}), row())
    )
    state = reader(ledger).job("r/u.0/0")
    assert state is not None and state.job is not None
    assert (state.job.sampling["min_p"], state.job.sampling["temperature"]) == (0.1, 0.7)
    with pytest.raises(SettingsError, match="has temperature, which verl sets and computes with"):
        asyncio.run(
            session(partial(loop, job={"env": "shop", "sampling": {"temperature": 0.5}}), row("v"))
        )


def test_sessions_wait_beside_each_other(loop: Make, ledger: Ledger) -> None:
    async def sessions() -> list[float]:
        asked = [played(ledger, loop, row(f"u{i % 3}", i // 3), reward=i / 16) for i in range(12)]
        return [output.reward_score for output in await asyncio.gather(*asked)]

    assert asyncio.run(sessions()) == [i / 16 for i in range(12)]
    stats = reader(ledger).stats()
    assert (stats["submitted"], stats["done"]) == (12, 12)


def test_the_event_loop_goes_on_while_redis_does_not_answer(loop: Make, ledger: Ledger) -> None:
    async def paused() -> tuple[int, Any]:
        ledger.redis.execute_command("CLIENT", "PAUSE", 2000)
        over, ticks = time.monotonic() + 2, 0
        asked = asyncio.ensure_future(session(loop, row()))
        while time.monotonic() < over:
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks, await answered(ledger, asked)

    ticks, output = asyncio.run(paused())
    assert ticks > 3  # a call that blocks leaves room for one
    assert output.reward_score == 1.0


def test_a_restarted_trainer_finds_what_was_played(loop: Make, ledger: Ledger) -> None:
    before = asyncio.run(played(ledger, loop, row()))
    again = asyncio.run(
        session(partial(loop, fresh=True), row(step=2))
    )  # verl issues it again, at a later step
    assert again.response_ids == before.response_ids and again.extra_fields == before.extra_fields
    assert reader(ledger).stats()["claims"] == 1


def test_a_prompt_that_got_another_uid_is_found_by_its_task_and_step(
    loop: Make, ledger: Ledger
) -> None:
    by_task, job_id = partial(loop, fresh=True, session_from="task"), "r/shop.train.7.step1.0/0"
    before = asyncio.run(answered(ledger, session(by_task, row("one")), job_id))
    again = asyncio.run(session(by_task, row("another")))
    assert again.extra_fields["rollq_job"] == before.extra_fields["rollq_job"] == job_id


def test_the_same_session_twice_at_once_is_one_episode(loop: Make, ledger: Ledger) -> None:
    async def both() -> list[Any]:
        return await asyncio.gather(session(loop, row()), played(ledger, loop, row()))

    first, second = asyncio.run(both())
    assert first.response_ids == second.response_ids
    assert reader(ledger).stats()["submitted"] == 1


@pytest.mark.parametrize(
    ("threshold", "asked"),  # a checkpoint at every second step, and those for prompts in flight
    [(8, (1, 2, 11, 12)), (16, (1, 2, 19, 20))],
)
def test_what_no_checkpoint_needs_is_acknowledged(
    loop: Make, ledger: Ledger, threshold: int, asked: tuple[int, ...]
) -> None:
    async def steps() -> list[str]:
        for step in asked:
            await played(
                ledger, partial(loop, save_freq=2, threshold=threshold), row(f"u{step}", step=step)
            )
        return reader(ledger).group_states([f"u{step}.0" for step in asked])

    assert asyncio.run(steps()) == ["acked", "ready", "ready", "ready"]
    with pytest.raises(
        LedgerError, match=r"job r/u1.0/0 was acknowledged.*use another run, or a larger keep_steps"
    ):
        asyncio.run(session(loop, row("u1")))


def test_without_a_bound_on_staleness_keep_steps_must_be_named(loop: Make, ledger: Ledger) -> None:
    with pytest.raises(SettingsError, match=r"max_off_policy_threshold is null, .* set keep_steps"):
        asyncio.run(session(partial(loop, threshold=None), row()))
    assert (
        asyncio.run(
            played(ledger, partial(loop, threshold=None, keep_steps=30), row())
        ).reward_score
        == 1.0
    )


def test_an_episode_without_a_grade_is_an_error_and_no_reward(loop: Make, ledger: Ledger) -> None:
    async def cancelled() -> None:
        asked = asyncio.create_task(session(loop, row()))
        await submitted(ledger, "r/u.0/0")
        DeadLetters(ledger.redis, "r").cancel("r/u.0/0")
        await asked

    with pytest.raises(
        RolloutFailure, match=r"job r/u.0/0 ended without a grade, of class cancelled"
    ):
        asyncio.run(cancelled())


def test_one_bad_session_leaves_the_others_alone(loop: Make, ledger: Ledger) -> None:
    async def three() -> list[Any]:
        good = played(ledger, loop, row())
        bad = session(loop, {**row("bad"), "extra_info": {}})
        unplayable = session(loop, row("worse"), {"temperature": -1.0})
        return await asyncio.gather(good, bad, unplayable, return_exceptions=True)

    good, bad, unplayable = asyncio.run(three())
    assert good.reward_score == 1.0
    assert isinstance(bad, ContractError) and "extra_info: {rollq: {task: 7}}" in str(bad)
    assert isinstance(unplayable, ContractError) and "temperature" in str(unplayable)


def test_a_session_with_other_content_is_refused_alone(loop: Make, ledger: Ledger) -> None:
    asyncio.run(played(ledger, loop, row("v", task=1)))

    async def both() -> list[Any]:
        good = asyncio.create_task(session(loop, row()))
        await submitted(ledger, "r/u.0/0")
        return await asyncio.gather(
            session(loop, row("v", task=2)), answered(ledger, good), return_exceptions=True
        )

    conflict, good = asyncio.run(both())
    assert isinstance(conflict, JobConflict)
    assert good.reward_score == 1.0


def test_the_old_trainer_is_refused(loop: Make) -> None:
    with pytest.raises(SettingsError, match=r"trainer.use_v1=true"):
        asyncio.run(session(loop, {"uid": "u", "extra_info": {"rollq": {"task": 1}}}))


def test_a_lost_submission_is_made_again(loop: Make, ledger: Ledger) -> None:
    async def lost() -> Any:
        asked = asyncio.create_task(session(loop, row()))
        await submitted(ledger, "r/u.0/0")
        ledger.redis.flushall()  # Redis came back without its last writes
        return await answered(ledger, asked)

    assert asyncio.run(lost()).reward_score == 1.0


def test_agents_with_rewards_of_their_own_are_refused(verl: ModuleType) -> None:
    with pytest.raises(ContractError, match=r"its agents have rewards of their own.*verl"):
        verl.as_outputs(rewarded_apart(), 4)


def test_rows_as_parquet_has_them_are_plain(verl: ModuleType) -> None:
    items = np.array([{"n": np.int64(1), "tags": np.array(["a"]), "no": None}], dtype=object)
    row = verl._row({"extra_info": {"rollq": {"task": 1, "env_args": {"items": items}}}})
    assert row == {"task": 1, "env_args": {"items": [{"n": 1, "tags": ["a"]}]}}
