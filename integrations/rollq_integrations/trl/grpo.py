"""The rollout function of TRL's GRPOTrainer: prompts name tasks, and the episodes of workers come
back as rows.

    rollouts = RolloutFunc(client, job=Job(env="shop", task=0))
    trainer = GRPOTrainer(
        model, rollq_reward, rollout_func=rollouts,
        train_dataset=task_prompts(rollouts.job, range(64)), ...
    )

A group's name follows from the trainer's step. So a trainer that restarts from a checkpoint asks
for the same groups again, and gets those that were played without playing them twice. A group is
acknowledged once a checkpoint holds the step that it was trained in. The interface is that of TRL
1.16 (trl/trainer/grpo_trainer.py).
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rollq import (
    Client,
    Consumer,
    ContractError,
    Group,
    History,
    Job,
    MissingGroups,
    NotHeld,
    PullTimeout,
    Purpose,
    SettingsError,
    Traces,
)
from rollq.errors import LedgerError
from rollq.pip_extras import needs
from rollq.weights import Fleet
from rollq_integrations.trl.rows import Row, place_of, row_of

with needs("trl"):
    from accelerate.utils import broadcast_object_list, gather_object
    from transformers import TrainerCallback

log = logging.getLogger("rollq")

NO_LIMIT = 1 << 31
"""The trainer waits for its groups before it submits more, so no producer's limit is needed."""
LOOK_S = 2.0
"""Seconds between two looks for dropped groups."""
STEP_OF_GROUP = re.compile(r"step(\d+)\.")


def check_temperature(job: Job, trainers: float) -> None:
    """The job samples with the temperature that the trainer computes logprobs for. Raises
    SettingsError.
    """
    temperature = job.sampling.get("temperature", 1.0)
    if temperature != trainers:
        raise SettingsError(
            f"the jobs of {job.env} sample with temperature {temperature:g}, and the trainer "
            f"computes logprobs for {trainers:g}: give the trainer's `temperature` and "
            "Job(sampling=) the same"
        )


def check_template_kwargs(args: Any) -> None:
    """The trainer does not say what only jobs say to the chat template. Raises SettingsError."""
    if args.chat_template_kwargs:
        raise SettingsError(
            "rollq's workers render the chat template: give Job(template_kwargs=) what the "
            "trainer's `chat_template_kwargs` has, and leave those out"
        )


class RolloutFunc:
    """`rollout_func` of a GRPOTrainer. Each call submits a group for each prompt, waits for exactly
    these groups, and returns a row for each prompt, in order. One trainer at a time may use a run.

    A dead member of a group that is viable without it is a row of one masked token with reward
    None; so is each member of a group that was dropped, and whose `refill` replacements were
    dropped too.

    With a `fleet`, the engines get the trainer's weights before each call, under the step's number
    as version: `trainer.save_model` writes them into `weights`, a folder that the engines see under
    the same path. The version is published. A group that has tokens of any other weights, as after
    a restart, is replaced like a dropped one. So training is on policy.
    """

    def __init__(
        self,
        client: Client,
        *,
        job: Job,
        name: str = "trl",
        refill: int = 1,
        fleet: Fleet | None = None,
        weights: str | Path | None = None,
        traces: Traces = "all",
    ) -> None:
        """`job`: the template of all jobs. Environment, split, task, size and group come from the
        trainer. `name`: the consumer's. `traces`: as in `Trajectory.segments`; of each episode one
        may be left. Raises SettingsError.
        """
        if job.history is not History.KEEP or job.context:
            raise SettingsError(
                "TRL trains one row for each prompt, and with history=template or a context an "
                "episode may have several: use neither, or AsyncGRPOTrainer with "
                "rollq_integrations.trl.async_grpo"
            )
        if job.purpose is not Purpose.TRAIN:
            raise SettingsError(f"a trainer plays jobs of purpose train, not {job.purpose.value}")
        if (fleet is None) != (weights is None):
            raise SettingsError("a fleet needs the folder for its weights, and the folder a fleet")
        self.client = client
        self.job = job
        self._name = name
        self._refill = refill
        self._traces = traces
        self._fleet = fleet
        self._weights = str(Path(weights).absolute() / client.run) if weights is not None else ""
        self._consumer: Consumer | None = None
        self._batches: dict[int, int] = {}
        """The trainer's step of each batch that is not acknowledged, by the number of the batch."""
        self._synced: int | None = None
        self._step = -1
        self._calls = 0
        """The trainer's step of the last call, and the number of calls for this step."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Plays the prompts. The keys of the result are the fields of Row.

        Raises SettingsError when the trainer's settings and the job's disagree, LedgerError when
        the run holds other groups or has none of these any more, and MissingGroups when all groups
        were dropped.
        """
        self._check(trainer)
        if not any(
            isinstance(callback, AckCallback) for callback in trainer.callback_handler.callbacks
        ):
            trainer.add_callback(AckCallback(self))
        step = trainer.state.global_step
        self._sync(trainer, step)
        self._calls = self._calls + 1 if step == self._step else 0
        self._step = step
        everyone = gather_object(list(prompts))  # a group may be spread over processes
        rows: list[Any] = [None]
        if trainer.accelerator.is_main_process:
            jobs = list(self._jobs(everyone, trainer.num_generations))
            rows = [list(self._rows(jobs, self._groups(jobs), trainer))]
        broadcast_object_list(rows)
        first = trainer.accelerator.process_index * len(prompts)
        mine = rows[0][first : first + len(prompts)]
        return {field.name: [getattr(row, field.name) for row in mine] for field in fields(Row)}

    def trained(self, step: int) -> None:
        """Acknowledges the groups that were trained in the steps before this one."""
        done = [number for number, of in self._batches.items() if of < step]
        if self._consumer and done:
            try:
                self._consumer.ack(up_to=max(done))
            except NotHeld as e:  # what comes again is acknowledged then
                log.warning("%s", e)
            self._batches = {number: of for number, of in self._batches.items() if of >= step}

    def close(self) -> None:
        """Stops renewing what is held. The next trainer of the run takes it over."""
        if self._consumer:
            self._consumer.close()
        self._consumer = None
        self._synced = None
        self._step = -1
        self._batches.clear()

    def _check(self, trainer: Any) -> None:
        check_temperature(self.job, trainer.temperature)
        check_template_kwargs(trainer.args)
        if trainer.args.eval_strategy != "no" or not trainer.model.training:
            raise SettingsError(
                "use GRPOConfig(eval_strategy='no'), and evaluate with `rollq eval` "
                "or `Client.evaluate`"
            )

    def _sync(self, trainer: Any, step: int) -> None:
        if self._fleet is None or step == self._synced:
            return
        # By all processes, because the weights may be sharded.
        trainer.save_model(self._weights, _internal_call=True)
        if trainer.accelerator.is_main_process:
            self._fleet.update(self._weights, str(step))
            self.client.publish(step)
        self._synced = step

    def _jobs(self, prompts: Sequence[Any], size: int) -> Iterator[Job]:
        """A job for each group; siblings are neighbours."""
        prefix = f"step{self._step}.{self._calls}"
        for index in range(0, len(prompts), size):
            siblings = prompts[index : index + size]
            if len(siblings) < size or any(prompt != siblings[0] for prompt in siblings):
                raise ContractError(
                    f"prompts {index} to {index + size - 1} are not {size} times the same one"
                )
            place = place_of(siblings[0])
            group = f"{prefix}.{index // size}"
            seed = self.job.seed + self._step
            yield replace(self.job, **place, size=size, sample=0, group=group, seed=seed)

    def _groups(self, jobs: Sequence[Job]) -> dict[str, Group]:
        """The groups of these jobs by the jobs' group names. Those that were dropped for good are
        left out.
        """
        self.client.submit(jobs, ahead=NO_LIMIT)
        self._dropped_groups([job.group for job in jobs])
        if self._consumer is None:
            self._consumer = self.client.consumer(name=self._name)
        names: dict[str, str] = {}
        for job in jobs:
            for n in range(self._refill + 1):
                names[job.replacement(n).group] = job.group
        missing = {job.group: job for job in jobs}
        groups: dict[str, Group] = {}
        while missing:
            for group in self._take(self._consumer, len(missing)):
                if group.id not in names:
                    raise LedgerError(
                        f"group {self.client.run}/{group.id} was not asked for: a trainer "
                        "needs a run of its own"
                    )
                groups[names[group.id]] = group
                missing.pop(names[group.id], None)
            for name in self._given_up(list(missing.values())):
                del missing[name]
        if not groups:
            raise MissingGroups(
                f"run {self.client.run}: all groups of step {self._step} were dropped: `rollq jobs "
                f"list {self.client.run}` says why"
            )
        return groups

    def _take(self, consumer: Consumer, wanted: int) -> Sequence[Group]:
        """The groups of the next batch of this step; none when it is not ready within LOOK_S."""
        while True:
            try:
                batch = consumer.next(wanted, LOOK_S)
            except PullTimeout:
                return []
            if batch is None:
                raise LedgerError(
                    f"run {self.client.run} is sealed and takes no more groups: use another run"
                )
            old = [group for group in batch.groups if _step(group) < self._step]
            if len(old) == len(batch.groups):
                batch.ack()  # a checkpoint holds them, and their trainer did not acknowledge them
                continue
            for group in old:
                batch.skip(group.id, "trained before")
            for group in batch.groups:
                others = self._other_weights(group)
                if others:
                    log.warning(
                        "group %s has tokens of weights %s, not %s: it is replaced",
                        group.id,
                        others,
                        self._step,
                    )
                    batch.skip(group.id, "stale")
            self._batches[batch.step] = self._step
            return batch.groups

    def _other_weights(self, group: Group) -> str:
        """The versions of its tokens, when they are not all that of the trainer's step. Only a
        fleet tells.
        """
        versions: set[str] = set()
        for trajectory in group.trajectories:
            versions.update(version for version in trajectory.versions if version)
        has_others = bool(versions - {str(self._step)})
        return ", ".join(sorted(versions)) if self._fleet and has_others else ""

    def _given_up(self, jobs: Sequence[Job]) -> list[str]:
        """Has dropped groups replaced, and waits for the replacements. Returns the groups whose
        last replacement was dropped, too.
        """
        names = self._dropped_groups([job.group for job in jobs])
        dropped = [job for job in jobs if job.group in names]
        if not dropped:
            return []
        self.client.refill(dropped, times=self._refill, ahead=NO_LIMIT)
        last = self._dropped_groups([job.replacement(self._refill).group for job in dropped])
        return [job.group for job in dropped if job.replacement(self._refill).group in last]

    def _dropped_groups(self, names: Sequence[str]) -> set[str]:
        """The groups of these that were dropped or skipped as stale. Raises LedgerError if one was
        trained and acknowledged.
        """
        if not names:
            return set()
        states = dict(zip(names, self.client.group_states(names), strict=True))
        acked = [name for name, state in states.items() if state == "acked"]
        if acked:
            raise LedgerError(
                f"group {self.client.run}/{acked[0]} was trained and acknowledged by an earlier "
                "trainer, so it cannot come again: resume from the latest checkpoint, or start a "
                "new run"
            )
        return {name for name, state in states.items() if state == "dropped"}

    def _rows(
        self, jobs: Sequence[Job], groups: Mapping[str, Group], trainer: Any
    ) -> Iterator[Row]:
        """A row for each sample of each job. Masked places hold padding."""
        processor = trainer.processing_class
        padding = getattr(processor, "tokenizer", processor).pad_token_id
        for job in jobs:
            group = groups.get(job.group)
            if group is None:
                yield from [row_of(None, None, padding)] * job.size
                continue
            members = list(zip(group.trajectories, group.rewards, strict=True))
            for trajectory, reward in members:
                yield row_of(trajectory, reward, padding, self._traces)
            yield from [row_of(None, None, padding)] * (job.size - len(members))


class AckCallback(TrainerCallback):  # type: ignore[misc]
    """Acknowledges the groups of a checkpoint, or each step if the trainer saves none.
    `RolloutFunc` adds it to its trainer.
    """

    def __init__(self, rollouts: RolloutFunc) -> None:
        self._rollouts = rollouts

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rollouts.close()  # after an error there was no end

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rollouts.trained(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.save_strategy == "no":
            self._rollouts.trained(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rollouts.close()


def _step(group: Group) -> float:
    """The trainer's step that asked for it; infinite for a group of another producer."""
    match = STEP_OF_GROUP.match(group.id)
    return int(match[1]) if match else float("inf")
