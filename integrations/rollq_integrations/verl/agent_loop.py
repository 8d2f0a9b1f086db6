"""verl: one agent loop that has its episodes played by rollq's workers.

In the file of `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

    - name: rollq
      _target_: rollq_integrations.verl.RollqAgentLoop
      run: shop-grpo
      job: {env: shop}

A row of the data set names its task: `extra_info: {rollq: {task: 7}}`, and `agent_name: rollq`.
docs/verl.md has a complete configuration. Read from verl 0.9.1 (verl/experimental/agent_loop,
verl/trainer/ppo/v1); it needs the V1 trainer. Its field contract:
tests/rollq_integrations/verl_contract.py.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput

from rollq import Client, ContractError, Job, Segment, SettingsError, Trajectory
from rollq.events import Observed, Sampled
from rollq.images import refuse_images
from rollq.training.arrays import refuse_agent_rewards, segment_experts


@cache
def episodes(redis_url: str | None, run: str, keep_steps: int) -> Any:
    """The episodes of this process: verl makes an agent loop for every session."""
    return Client(redis_url, run=run).episodes(keep_steps)


class RollqAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Submits a session as a job of its own, and waits for its episode without blocking verl's
    event loop.
    """

    def __init__(
        self,
        *args: Any,
        run: str,
        redis_url: str | None = None,
        job: Mapping[str, Any] | None = None,
        keep_steps: int | None = None,
        session_from: str = "uid",
        traces: str = "all",
        **kwargs: Any,
    ) -> None:
        """`redis_url`: default ROLLQ_REDIS_URL. `job`: fields of `rollq.Job` that all rows have,
        `budget` as a mapping. `keep_steps`: steps for which a played episode is kept for a trainer
        that restarts (default: `trainer.save_freq` and
        `trainer.v1.sampler.max_off_policy_threshold`). `session_from`: `uid` or `task`, what makes
        two sessions the same; docs/verl.md. `traces`: `all`, `main` or `longest`, those to train
        on.
        """
        super().__init__(*args, **kwargs)
        if session_from not in ("uid", "task"):
            raise SettingsError(f"session_from must be uid or task, not {session_from!r}")
        if keep_steps is None:
            keep_steps = _keep_steps(self.config.trainer)
        self._job = dict(_mapping("job", _plain(job)))
        self._by_task = session_from == "task"
        self._traces = traces
        self._episodes = episodes(redis_url, run, keep_steps)

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> Any:
        """One session: an AgentLoopOutput, or a list of them when the episode has several traces
        (`history=template`, `context`). Raises RolloutFailure for an episode without a grade: verl
        counts the prompt as failed.
        """
        job = self._as_job(sampling_params, fields, self._session(fields))
        step = _step(fields)
        trajectory = await self._episodes.play(job, step)
        rows = as_outputs(trajectory, step, self._traces)
        outputs = [AgentLoopOutput(**row) for row in rows]
        return outputs[0] if len(outputs) == 1 else outputs

    def _session(self, fields: Mapping[str, Any]) -> str:
        """The name of the job's group."""
        if "uid" not in fields or "session_id" not in fields:
            raise SettingsError(
                "verl gave its agent loop no uid and session_id: rollq needs the V1 trainer "
                "(trainer.use_v1=true, the default of verl 0.9)"
            )
        if not self._by_task:
            return f"{fields['uid']}.{int(fields['session_id'])}"
        job = Job.of({**self._job, **_row(fields)})
        return f"{job.task_name}.step{_step(fields)}.{int(fields['session_id'])}"

    def _as_job(
        self, sampling_params: Mapping[str, Any], fields: Mapping[str, Any], group: str
    ) -> Job:
        """Raises ContractError for a row that names no task and for what no worker can play,
        SettingsError for sampling parameters that are verl's.
        """
        row = {**self._job, **_row(fields)}
        lengths = self.rollout_config
        longest = lengths.prompt_length + lengths.response_length
        budget = {"max_tokens": longest, **_mapping("budget", row.get("budget"))}
        # rollq always records logprobs, so it has no parameter for them.
        verls = {name: value for name, value in sampling_params.items() if name != "logprobs"}
        own = _mapping("sampling", row.get("sampling"))
        both = ", ".join(sorted({*own} & {*verls}))
        if both:
            raise SettingsError(
                f"sampling of the agent loop's job has {both}, which verl sets and "
                "computes with: set it in actor_rollout_ref.rollout"
            )
        return Job.of({**row, "sampling": {**verls, **own}, "group": group, "budget": budget})


def as_outputs(trajectory: Trajectory, step: int, traces: str = "all") -> list[dict[str, Any]]:
    """The fields of verl's AgentLoopOutput, for each trace in which something was sampled, of those
    that `traces` chooses (`Trajectory.segments`).

    verl puts the reward on the last token of the response, and asks for the versions as integers:
    that of the weights with which the first and the last token were sampled, at the oldest and at
    the newest. verl's engines do not say theirs; then both are `step` - 1, the weights when the
    session began, so no token is taken for younger than it is. Raises ContractError for an episode
    with images, or with agents that have rewards of their own.
    """
    refuse_images(trajectory, "verl")
    refuse_agent_rewards(trajectory, "verl")
    segments = trajectory.segments(traces)
    if not segments:
        raise ContractError(
            f"job {trajectory.job.id}: the policy sampled nothing (stop {trajectory.stop})"
        )
    outputs = [_output(segment, trajectory, step) for segment in segments]
    for output, experts in zip(outputs, segment_experts(trajectory, traces), strict=False):
        output["routed_experts"] = experts.astype(
            "int32"
        )  # a row for each token of prompt and response
    return outputs


def _output(segment: Segment, trajectory: Trajectory, step: int) -> dict[str, Any]:
    names = {version for version in segment.versions if version is not None}
    steps = [int(name) for name in names] if all(map(str.isdecimal, names)) else [step - 1]
    return {
        "prompt_ids": segment.prompt_ids.tolist(),
        "response_ids": segment.response_ids.tolist(),
        "response_mask": list(segment.mask),
        "response_logprobs": segment.logprobs.tolist(),
        "reward_score": trajectory.reward,
        "num_turns": 2 * trajectory.turns,  # of both sides: the user speaks first, the policy last
        "metrics": {
            "generate_sequences": sum(
                event.seconds for event in segment.events if isinstance(event, Sampled)
            ),
            "tool_calls": sum(
                event.seconds for event in segment.events if isinstance(event, Observed)
            ),
        },
        "extra_fields": {
            "min_global_steps": min(steps),
            "max_global_steps": max(steps),
            "reward_extra_info": {},
            "turn_scores": [],
            "tool_rewards": [],
            "rollq_job": trajectory.job.id,
            "rollq_stop": str(trajectory.stop),
        },
    }


def _keep_steps(trainer: Any) -> int:
    """The steps between two checkpoints, and those after which verl still trains on a prompt: one
    that a checkpoint has in flight comes again after a restart, and some of its sessions were
    played as long before.
    """
    in_flight = trainer.v1.sampler.max_off_policy_threshold
    if in_flight is None:
        raise SettingsError(
            "trainer.v1.sampler.max_off_policy_threshold is null, so verl plays a prompt for any "
            "number of steps: set keep_steps of the agent loop to trainer.save_freq and the most "
            "steps that a prompt takes"
        )
    return max(1, int(trainer.save_freq)) + int(in_flight)


def _step(fields: Mapping[str, Any]) -> int:
    """verl's global step, from 1."""
    return int(fields["global_steps"])


def _row(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the job that the row of the data set names."""
    row = (fields.get("extra_info") or {}).get("rollq")
    if not isinstance(row, Mapping) or "task" not in row:
        raise ContractError(
            "a row of verl's data set names its task: extra_info: {rollq: {task: 7}}"
        )
    return dict(_without_nulls(_plain(row)))


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    """The value; an empty mapping where YAML has none. Raises SettingsError that names it."""
    if value is not None and not isinstance(value, Mapping):
        raise SettingsError(f"{name} of verl's agent loop must be a mapping, not {value!r:.100}")
    return value or {}


def _without_nulls(values: Any) -> Any:
    """Parquet has the keys of all rows in each, with null where the row had none."""
    if isinstance(values, dict):
        return {name: _without_nulls(value) for name, value in values.items() if value is not None}
    return [_without_nulls(value) for value in values] if isinstance(values, list) else values


def _plain(values: Any) -> Any:
    """Mappings and lists of omegaconf, and numbers of numpy and pyarrow, as JSON values."""
    if isinstance(values, Mapping):
        return {str(name): _plain(value) for name, value in values.items()}
    if isinstance(values, str):
        return str(values)
    if hasattr(values, "tolist"):
        listed = values.tolist()
        return _plain(listed) if isinstance(listed, list) else listed
    return [_plain(value) for value in values] if hasattr(values, "__iter__") else values
