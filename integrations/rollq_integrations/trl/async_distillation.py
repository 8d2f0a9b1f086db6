"""The rollout worker of TRL's AsyncDistillationTrainer: finished groups of a run, with the scores
of their teacher, become samples in the trainer's queue.

    worker = DistillationWorker(client, teacher="math")
    transfer = FleetTransfer(worker, fleet, "/shared/weights")
    trainer = AsyncDistillationTrainer(
        model, rollout_worker=worker, weight_transfer=transfer, callbacks=[worker],
        train_dataset=..., args=...
    )

TRL itself asks no teacher then. The interface is that of TRL 1.16
(trl/experimental/async_distillation).
"""

from collections.abc import Iterator
from typing import Any

from rollq import Batch, Client, SettingsError, Traces
from rollq.pip_extras import needs
from rollq_integrations.trl.async_grpo import RolloutWorker

with needs("trl"):
    import numpy as np
    from trl.experimental.async_distillation.async_rollout_worker import RolloutSample


class DistillationWorker(RolloutWorker):
    """A `RolloutWorker` whose samples have the likeliest tokens of one teacher at each place that
    the policy sampled, and the sampled token itself.

    The teacher scores at temperature 1, so leave `teacher_temperature` at 1.
    """

    def __init__(
        self, client: Client, *, teacher: str, name: str = "trl", traces: Traces = "all"
    ) -> None:
        """`teacher` is one of the jobs' `teachers`, with a `top_k`."""
        super().__init__(client, name=name, traces=traces)
        self._teacher = teacher
        self._extras = (f"teacher/{teacher}/top_ids", f"teacher/{teacher}/top_logprobs")

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        super().on_train_begin(args, state, control, **more)
        if args.teacher_temperature != 1.0:
            raise SettingsError(
                "the teacher has scored at temperature 1, and "
                f"AsyncDistillationConfig(teacher_temperature={args.teacher_temperature:g}) would "
                "compare that with another temperature of the policy: leave it at 1"
            )

    def _samples(self, batch: Batch) -> Iterator[Any]:
        arrays = batch.arrays(traces=self._traces)
        if not len(arrays.rewards):
            return  # nothing was sampled
        if self._teacher not in arrays.teacher_top_ids:
            raise SettingsError(
                f"run {self.client.run}: its jobs have no likeliest tokens of a teacher "
                f"{self._teacher!r}: submit them with teachers.{self._teacher}.top_k"
            )
        ids, logprobs = self._candidates(arrays)
        for row, length, fields in self._rows(batch, arrays):
            yield RolloutSample(
                **fields,
                teacher_topk_ids=ids[row, :length],
                teacher_topk_logprobs=logprobs[row, :length],
                teacher_id=self._teacher,
                prompt_id=batch.step,
            )

    def _candidates(self, arrays: Any) -> tuple[Any, Any]:
        """TRL's teacher_topk_ids and teacher_topk_logprobs, (rows, length, top_k + 1): behind the
        likeliest tokens the sampled one, where it is none of them. -1 and -inf where there is none.
        """
        likeliest = arrays.teacher_top_ids[self._teacher]
        is_listed = (likeliest == arrays.tokens[..., None]).any(-1)
        adds = arrays.mask & ~is_listed
        own = np.where(adds, arrays.tokens, -1)[..., None]
        score = np.where(adds, arrays.teacher_logprobs[self._teacher], -np.inf)[..., None]
        listed = np.where(likeliest >= 0, arrays.teacher_top_logprobs[self._teacher], -np.inf)
        ids = np.concatenate([likeliest, own], -1)
        return ids, np.concatenate([listed, score], -1).astype("float32")
