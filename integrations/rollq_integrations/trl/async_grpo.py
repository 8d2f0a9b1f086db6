"""The rollout worker of TRL's AsyncGRPOTrainer: finished groups of a run become samples in the
trainer's queue.

    worker = RolloutWorker(client)
    transfer = FleetTransfer(worker, fleet, "/shared/weights")
    trainer = AsyncGRPOTrainer(
        model, rollout_worker=worker, weight_transfer=transfer, callbacks=[worker],
        train_dataset=..., args=...
    )

Any producer submits the jobs. The trainer's data loader reads ahead, so a sample that left the
queue is not trained yet. The worker counts what each step trains and acknowledges a group once a
checkpoint holds all its samples. The interface is that of TRL 1.16 (trl/experimental/async_grpo).
"""

import logging
import queue
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollq import Batch, Client, Consumer, PullTimeout, SettingsError, Traces
from rollq.errors import LedgerError
from rollq.images import refuse_images
from rollq.pip_extras import needs
from rollq.weights import Fleet
from rollq_integrations.trl.grpo import check_temperature, check_template_kwargs

with needs("trl"):
    from safetensors.torch import save_file
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

log = logging.getLogger(__name__)

MOST_QUEUED = 64
"""Samples that wait in the queue. More would only be held longer."""
LOOK_S = 2.0
"""Seconds between two looks at what the trainer has saved."""
EXIT_S = 30.0


class Taken(NamedTuple):
    """A sample that the trainer took from the queue."""

    batch: int
    last: bool
    """True if it is the last sample of its batch."""
    stale: bool
    """True if the trainer drops it."""


class RolloutBuffer(queue.Queue[Any]):
    """A queue of the number of a batch, true for its last sample, and the sample. The trainer gets
    the sample alone, and is noted as having it.
    """

    def __init__(self) -> None:
        super().__init__(MOST_QUEUED)
        self.version = self.max_staleness = 0
        self.taken: deque[Taken] = deque()

    def clear(self) -> None:
        """Forgets everything."""
        with self.mutex:
            self.queue.clear()
            self.taken.clear()
            self.not_full.notify_all()

    def get(self, block: bool = True, timeout: float | None = None) -> RolloutSample:
        sample: RolloutSample
        batch, last, sample = super().get(block, timeout)
        self.taken.append(
            Taken(batch, last, self.version - sample.model_version > self.max_staleness)
        )
        return sample


class RolloutWorker(TrainerCallback, ExportableState):  # type: ignore[misc]
    """`rollout_worker` of an AsyncGRPOTrainer, and one of its `callbacks`: these tell the trainer's
    step and what a checkpoint holds. Its state is in the trainer's checkpoint. A run has one
    trainer at a time.

    A group is one group of samples, with a number of its own; each segment of each trajectory is a
    sample. The advantages are the estimator's of that name (`rollq.training.advantages`).

    Each weight sync publishes the trainer's step. The version of a sample is that of its oldest
    token. It counts the syncs of this process, as TRL does: a step before the first one counts as
    one version, a step that a killed trainer came to as the sync to come (TRL's staleness is below
    0 then), and a token of a version that was never published as old as its group's start.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str = "trl",
        advantages: str = "grpo",
        traces: Traces = "all",
    ) -> None:
        """`name`: the consumer's. `traces`: as in `Trajectory.segments`. Raises SettingsError for
        credit by turn: TRL's samples have one advantage.
        """
        if not isinstance(advantages, str):
            raise SettingsError(
                "a sample of TRL has one advantage, so there is no credit by turn: train "
                "on `batch.arrays(advantages=)`"
            )
        self.client = client
        self.rollout_buffer = RolloutBuffer()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.step = 0
        """The trainer's step."""
        self._name = name
        self._advantages = advantages
        self._traces = traces
        self._extras: Sequence[str] = ()
        """Arrays beside the journals that the samples need."""
        self._temperature: float | None = None
        """The trainer's; None until training begins."""
        self._synced: list[int] = []
        """The trainer's step of each weight sync."""
        self._sync_every = 1
        self._done = -1
        self._into = 0
        """The last batch whose samples are all trained, and how many samples of the next one are.
        """
        self._kept = -1
        """The last batch that a checkpoint holds."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._produced_at = time.monotonic()

    # The protocol of a rollout worker.

    def start(self) -> None:
        """Begins to fill the queue. Raises SettingsError when this worker is not a callback of the
        trainer.
        """
        if self._temperature is None:
            raise SettingsError(
                "the rollout worker has to know the trainer's steps: "
                "AsyncGRPOTrainer(callbacks=[worker])"
            )
        self._stopping.clear()
        self.rollout_buffer.clear()
        self._error = None
        self._produced_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="rollq-rollouts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Acknowledges what the last checkpoint holds, and ends. The next trainer of the run takes
        over the rest.
        """
        self._stopping.set()
        if self._thread:
            self._thread.join(EXIT_S)
            if self._error or self._thread.is_alive():
                why = self._error or f"Redis did not answer for {EXIT_S:g} s"
                log.error(
                    "run %s: what the last checkpoint holds may not be acknowledged: %s",
                    self.client.run,
                    why,
                )

    def update_model_version(self, model_version: int) -> None:
        """The engines serve the policy of the trainer's step now."""
        self._synced.append(self.step)
        self.rollout_buffer.version = model_version
        self.client.publish(self.step)

    def check_health(self, stale_after_s: float) -> None:
        """Called while the trainer waits. Raises the error that ended the worker, and PullTimeout
        when no sample came for `stale_after_s` seconds after the last step, for another reason than
        long episodes: it says who waits for whom.
        """
        if self._error:
            raise self._error
        waited = time.monotonic() - self._produced_at
        if waited > stale_after_s and (why := self.client.explain(1)):
            raise PullTimeout(f"no sample for {waited:.0f} s: {why}")

    # The callback.

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called before TRL puts values of its own into the settings."""
        if args.token_budget is None or args.token_budget > 0:
            raise SettingsError(
                "to acknowledge what is trained, rollq counts samples, so each step needs the same "
                "number of them: use AsyncGRPOConfig(token_budget=0)"
            )
        if args.max_steps <= 0:
            raise SettingsError("the run's jobs have no epochs: use AsyncGRPOConfig(max_steps=)")
        if args.restore_callback_states_from_checkpoint:
            raise SettingsError(
                "the rollout worker reads what the checkpoint says of it by itself: use"
                " AsyncGRPOConfig(restore_callback_states_from_checkpoint=False)"
            )
        check_template_kwargs(args)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._temperature = args.temperature
        self.step = state.global_step
        self.rollout_buffer.max_staleness, self._sync_every = (
            args.max_staleness,
            args.weight_sync_steps,
        )
        self._synced = []
        self._done = -1
        self._into = 0
        self._kept = -1
        if self.step:
            saved = state.stateful_callbacks.get(type(self).__name__)
            if not saved:
                raise SettingsError(
                    "the checkpoint does not say what it holds: it was saved "
                    "without a RolloutWorker"
                )
            self._done = saved["attributes"]["done"]
            self._into = saved["attributes"]["into"]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.step = state.global_step
        self._produced_at = time.monotonic()
        if state.is_world_process_zero:
            self._count(
                args.per_device_train_batch_size
                * args.gradient_accumulation_steps
                * args.world_size
            )
        if args.save_strategy == "no":
            self._kept = self._done

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._kept = self._done

    def state(self) -> dict[str, Any]:
        """The worker's part of a checkpoint."""
        return {"args": {}, "attributes": {"done": self._done, "into": self._into}}

    def _count(self, trained: int) -> None:
        """The next `trained` samples are trained. The trainer takes them in order, and trains all
        but the stale.
        """
        while trained:
            batch, last, stale = self.rollout_buffer.taken.popleft()
            self._done, self._into = (batch, 0) if last else (self._done, self._into + 1)
            trained -= not stale

    # The thread.

    def _run(self) -> None:
        skip = self._into  # samples that the checkpoint holds
        expected = self._done + 1
        try:
            with self.client.consumer(
                name=self._name,
                step=self._done if self._done >= 0 else None,
                extras=self._extras,
            ) as consumer:
                while not self._stopping.is_set():
                    consumer.ack(up_to=self._kept)
                    if batch := self._next(consumer):
                        if skip and batch.step != expected:
                            raise LedgerError(
                                f"run {self.client.run}: the checkpoint holds a part of batch "
                                f"{expected}, which a later one acknowledged: resume from the "
                                "latest checkpoint, or start a new run"
                            )
                        expected += 1  # one in which nothing was sampled has no part
                        skip -= self._put(batch, skip)
                consumer.ack(up_to=self._kept)
        except Exception as e:  # raised in the trainer's thread
            self._error = e

    def _next(self, consumer: Consumer) -> Batch | None:
        try:
            batch = consumer.next(1, LOOK_S)
        except PullTimeout:
            return None
        if batch is None:
            self._error = LedgerError(
                f"run {self.client.run} is sealed and has no more groups: train fewer steps"
            )
            self._stopping.wait(LOOK_S)
        return batch

    def _put(self, batch: Batch, skip: int) -> int:
        """Queues the samples of the batch but the first `skip`. Returns how many were skipped."""
        samples = list(self._samples(batch))
        for index, sample in enumerate(samples[skip:], skip + 1):
            while not self._stopping.is_set():
                try:
                    self.rollout_buffer.put(
                        (batch.step, index == len(samples), sample), timeout=LOOK_S
                    )
                except queue.Full:
                    continue
                self._produced_at = time.monotonic()
                break
        return min(skip, len(samples))

    def _samples(self, batch: Batch) -> Iterator[Any]:
        arrays = batch.arrays(advantages=self._advantages, traces=self._traces)
        for row, length, fields in self._rows(batch, arrays):
            yield RolloutSample(
                **fields,
                old_log_probs=arrays.logprobs[row, :length],
                advantage=float(arrays.advantages[row]),
                group_id=batch.step,
            )

    def _rows(self, batch: Batch, arrays: Any) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Number and length of each row of the arrays, and the fields of any sample of TRL."""
        assert self._temperature is not None  # `start` saw to it
        segments = (
            segment
            for trajectory in batch.trajectories
            for segment in trajectory.segments(self._traces)
        )  # as the arrays
        for row, (index, segment) in enumerate(zip(arrays.trajectory_index, segments, strict=True)):
            trajectory = batch.trajectories[index]
            group = batch.groups[arrays.group_index[row]]
            check_temperature(trajectory.job, self._temperature)
            refuse_images(trajectory, "TRL")
            length = int(arrays.attention_mask[row].sum())
            versions = set(arrays.versions[row].tolist()) - {-1}
            steps = {int(arrays.version_steps[version]) for version in versions}
            fields: dict[str, Any] = {
                "prompt": segment.prompt_messages,
                "completion": segment.messages,
                "input_ids": arrays.tokens[row, :length],
                "completion_mask": arrays.mask[row, :length].astype("int64"),
                "model_version": self._version(steps, group.started_step),
                "metrics": {
                    "reward": float(arrays.rewards[row]),
                    "turns": float(trajectory.turns),
                },
                "enqueued_at": time.time(),
            }
            yield row, length, fields

    def _version(self, steps: set[int], started: int | None) -> int:
        """TRL's number of the oldest of these steps; -1 is an unknown one."""
        unknown = self._synced[-1] if started is None else started
        oldest = min(step if step >= 0 else unknown for step in steps)
        synced = self._synced.copy()  # the trainer's thread appends to it
        if oldest < synced[0]:
            return 1 - (synced[0] - oldest)
        to_come = max(0, oldest // self._sync_every - synced[-1] // self._sync_every)
        return bisect_right(synced, oldest) + to_come


class FleetTransfer:
    """`weight_transfer` of an AsyncGRPOTrainer: writes the trainable parameters into a folder that
    the engines see under the same path, and has the fleet load them under the trainer's step as
    version.
    """

    def __init__(self, worker: RolloutWorker, fleet: Fleet, weights: str | Path) -> None:
        self._worker = worker
        self._fleet = fleet
        self._folder = Path(weights).absolute() / worker.client.run

    def init_weight_transfer(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def pause(self) -> None:
        """The update pauses each engine for its own load only."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Raises SyncError."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in iterator}
        save_file(tensors, self._folder / "model.safetensors", metadata={"format": "pt"})
        self._fleet.update(str(self._folder), str(self._worker.step))

    def resume(self) -> None:
        """See `pause`."""

    def destroy(self) -> None:
        """Nothing is kept between two updates."""
