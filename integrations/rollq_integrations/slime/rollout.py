"""slime's data source and rollout function: the groups of a named consumer."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rollq import Batch, Client, Consumer, ContractError, Group, Job, MissingGroups, SettingsError
from rollq.errors import LedgerError
from rollq_integrations.slime.engines import engine_urls, publish
from rollq_integrations.slime.samples import (
    TRUNCATED,
    batch_samples,
    check_arguments,
    group_samples,
)

PREFIX = "rollq_"
"""The prefix of the settings' names."""
REFUSED = {
    "rollout_top_p": (
        1.0,
        "slime trains on the token ids that its own engine kept, which no rollq record has",
    ),
    "partial_rollout": (False, "workers go on with an interrupted turn by themselves"),
    "group_rm": (False, "the environment grades, or the function that rollq_reward names"),
    "custom_rm_path": (None, "the environment grades, or the function that rollq_reward names"),
    "rm_type": (None, "the environment grades, or the function that rollq_reward names"),
    "reward_key": (None, "a reward is one number"),
    "custom_generate_function_path": (None, "rollq's workers play the episodes"),
    "async_save": (
        False,
        "a rollout is acknowledged at its checkpoint, which is not whole yet then",
    ),
    "update_weight_mode": (
        "full",
        "the first update of a delta tells slime's engines no weight version",
    ),
    "debug_rollout_only": (False, "slime tells its engines no weight version then"),
    "rollout_all_samples_process_path": (
        None,
        "groups that are not kept are not handed out again after a restart",
    ),
    "rollout_global_dataset": (
        True,
        "leave out --disable-rollout-global-dataset, or slime never tells its checkpoints",
    ),
}
"""slime's arguments that cannot have another value here, with this value and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimeSettings:
    """The attributes `rollq_*` of slime's arguments."""

    run: str
    redis_url: str | None = None
    """Default: ROLLQ_REDIS_URL."""
    consumer: str = "slime"
    """Name of the consumer; another one for each trainer of the run."""
    engines: str | None = None
    """Write slime's engines to this list, for workers with `--engine redis:NAME`."""
    reward: str | None = None
    """Import path (`module:function`) of a function of a trajectory, in place of the environment's
    reward.
    """
    traces: str = "all"
    """Traces to train on: `all`, `main` or `longest`."""
    eval_job: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `rollq.Job` for evaluations, for example `user` and `agent`; `budget` as a mapping.
    """

    @classmethod
    def read(cls, args: Any) -> "SlimeSettings":
        """Raises SettingsError for a setting that is missing or unknown, and for what slime cannot
        do with rollq.
        """
        for name, (wanted, why) in REFUSED.items():
            value = getattr(args, name, wanted)
            if value != wanted:
                flag = f"--{name.replace('_', '-')}"
                raise SettingsError(
                    f"slime's {flag} must be {wanted!r} with rollq, not {value!r}: {why}"
                )
        settings = {}
        for name, value in vars(args).items():
            if name.startswith(PREFIX) and value is not None:  # as a key without a value in YAML
                settings[name.removeprefix(PREFIX)] = value
        names = [field.name for field in fields(cls)]
        unknown = sorted({*settings} - {*names})
        if unknown:
            allowed = ", ".join(PREFIX + name for name in names)
            raise SettingsError(
                f"slime's arguments have {PREFIX}{unknown[0]}; rollq knows {allowed}"
            )
        if not settings.get("run"):
            raise SettingsError(
                "name the run: put `rollq_run: NAME` into the file of slime's --custom-config-path"
            )
        job = settings.get("eval_job", {})
        if not isinstance(job, Mapping) or not isinstance(job.get("sampling", {}), Mapping):
            raise SettingsError(
                "rollq_eval_job must be a mapping of fields of rollq.Job, and its "
                f"sampling a mapping, not {job!r}"
            )
        return cls(**settings)


class DataSource:
    """slime's data source: the named consumer of a run. `save` acknowledges, `load` begins at a
    checkpoint.
    """

    def __init__(self, args: Any) -> None:
        """Raises SettingsError and ContractError for wrong settings and evaluations."""
        self.settings = SlimeSettings.read(args)
        # another function reads the paths of evaluations its own way
        if args.eval_function_path == args.rollout_function_path:
            for dataset in args.eval_datasets:
                _tasks(dataset, self.settings)
        self.args = args
        self.client = Client(self.settings.redis_url, run=self.settings.run)
        self.first = 0
        """The rollout with which this process began."""
        self.drops: Counter[str] = Counter()
        """Groups that the filter of `--dynamic-sampling-filter-path` dropped for this rollout, by
        its reasons.
        """
        self._filter = _filter(args)
        self._consumer: Consumer | None = None

    def load(self, rollout_id: int | None = None) -> None:
        """Begins after the checkpoint of that rollout; -1 and None: there is no checkpoint.

        Raises LedgerError when a later rollout is acknowledged already.
        """
        step = rollout_id if rollout_id is not None and rollout_id >= 0 else None
        self.first = 0 if step is None else step + 1
        self._consumer = self.client.consumer(
            name=self.settings.consumer,
            step=step,
            order="submitted",
            where=self.dynamic_sampling_filter,
            reward=self.settings.reward,
            extras=["routed_experts"] if self.args.use_rollout_routing_replay else (),
        )

    def save(self, rollout_id: int) -> None:
        """slime has a checkpoint of that rollout: acknowledge its groups, and those before."""
        self._ensure_consumer().ack(up_to=rollout_id)

    def get_samples(self, num_samples: int) -> list[Any]:
        raise SettingsError(
            "slime needs --rollout-function-path rollq_integrations.slime.generate_rollout for "
            "this data source"
        )

    def add_samples(self, samples: list[Any]) -> None:
        raise ContractError(
            "rollq's groups come finished from its queue, and none can be put back into it"
        )

    def __len__(self) -> int:
        """Number of groups that were submitted so far. Give slime --num-rollout, not
        --num-epoch.
        """
        stats = self.client.stats()
        states = ("open", "ready", "held", "acked", "skipped", "dropped")
        return sum(int(stats[f"groups_{state}"]) for state in states)

    def batch(self, rollout_id: int) -> Batch:
        """The groups of that rollout, exactly `rollout_batch_size`. Raises LedgerError when the run
        is elsewhere.
        """
        self.drops.clear()
        batch = self._ensure_consumer().next(self.args.rollout_batch_size, exact=True)
        if batch is None:
            raise MissingGroups(
                f"run {self.settings.run} is sealed and has no more groups: end slime with "
                "--num-rollout, or train on with another run"
            )
        where = f"run {self.settings.run}: consumer {self.settings.consumer}"
        if batch.step != rollout_id:
            raise LedgerError(
                f"{where} is at rollout {batch.step}, and slime asks for {rollout_id}. Start "
                f"slime from the checkpoint before rollout {batch.step}, or use another run or "
                "another rollq_consumer"
            )
        if len(batch.groups) != self.args.rollout_batch_size:
            raise LedgerError(
                f"{where} took {len(batch.groups)} groups for rollout {rollout_id} before it was "
                f"restarted, and --rollout-batch-size is {self.args.rollout_batch_size}: leave it "
                "as it was"
            )
        return batch

    def dynamic_sampling_filter(self, group: Group) -> bool:
        """True if slime trains on the group: it is complete, every member sampled something, and
        slime's own filter keeps it. Groups that slime's arguments do not fit raise SettingsError.
        """
        check_arguments(group, self.args)
        members = group_samples(group, traces=self.settings.traces)
        if len(members) != group.size:
            self.drops["short"] += 1
            return False
        if self._filter is None:
            return True
        verdict = self._filter(self.args, [sample for rows in members for sample in rows])
        if getattr(verdict, "keep", verdict):
            return True
        if getattr(verdict, "keep_when_insufficient", False):
            spare = self.args.over_sampling_batch_size - self.args.rollout_batch_size
            # slime may have trained on a redelivered group before a restart
            if self.drops.total() >= spare or group.redelivered:
                return True
        self.drops[getattr(verdict, "reason", None) or "unnamed"] += 1
        return False

    def _ensure_consumer(self) -> Consumer:
        if self._consumer is None:
            self.load()
        assert self._consumer is not None
        return self._consumer


def _filter(args: Any) -> Any:
    """slime's filter of groups, f(args, samples); None without one."""
    if args.dynamic_sampling_filter_path is None:
        return None
    from slime.utils.misc import load_function

    return load_function(args.dynamic_sampling_filter_path)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's rollout function: waits for `rollout_batch_size` finished groups, in the order of
    their submission.

    First it publishes the policy that slime's engines serve, so that admission goes on. Returns
    RolloutFnTrainOutput, or RolloutFnEvalOutput. Raises SettingsError for a data source that is not
    rollq's, and what `Consumer.next` raises.
    """
    from slime.rollout.base_types import RolloutFnTrainOutput

    if not isinstance(data_source, DataSource):
        raise SettingsError(
            "slime needs --data-source-path rollq_integrations.slime.DataSource for "
            "this rollout function"
        )
    urls = engine_urls(args)
    if data_source.settings.engines:
        data_source.client.set_engines(data_source.settings.engines, urls)
    trained = rollout_id + evaluation  # slime evaluates after it has trained on the rollout
    step, version = publish(data_source.client, args, data_source.first, urls, trained)
    if evaluation:
        return _evaluate(args, data_source, step, version)
    batch = data_source.batch(rollout_id)
    samples = batch_samples(batch, rollout_id, args, data_source.settings.traces)
    if args.rollout_sample_filter_path is not None:
        from slime.utils.misc import load_function

        load_function(args.rollout_sample_filter_path)(args, samples)
    return RolloutFnTrainOutput(samples=samples, metrics=_metrics(batch, data_source.drops))


def _metrics(batch: Batch, drops: Mapping[str, int]) -> dict[str, float]:
    redelivered = sum(group.redelivered for group in batch.groups)
    metrics: dict[str, float] = {"rollout/rollq/redelivered_groups": redelivered}
    for name, value in (("max", batch.staleness.max), ("mean", batch.staleness.mean)):
        if value is not None:
            metrics[f"rollout/rollq/staleness_{name}"] = value
    for reason, count in drops.items():
        metrics[f"rollout/dynamic_filter/drop_{reason}"] = count
    return metrics


def _evaluate(args: Any, data_source: DataSource, step: int, version: str) -> Any:
    """Plays slime's evaluation data sets at once: each task of one `n_samples_per_eval_prompt`
    times, by the weights that are served now. The results are kept with the run as NAME-STEP.
    """
    from slime.rollout.base_types import RolloutFnEvalOutput

    client = data_source.client
    running = []
    for dataset in args.eval_datasets:
        tasks = _tasks(dataset, data_source.settings)
        name = f"{dataset.name}-{step}"
        evaluation = client.evaluate(tasks, dataset.n_samples_per_eval_prompt, version, name=name)
        running.append((dataset, evaluation))
    data = {}
    for dataset, evaluation in running:
        tries = evaluation.result().tries
        if not tries:
            raise LedgerError(
                f"run {client.run}: no try of the evaluation {dataset.name} was graded: "
                "see `rollq jobs list`"
            )
        data[dataset.name] = {
            "rewards": [episode.reward for episode in tries],
            "truncated": [episode.stop in TRUNCATED for episode in tries],
        }
    return RolloutFnEvalOutput(data=data)


def _tasks(dataset: Any, settings: SlimeSettings) -> list[Job]:
    """The tasks of one evaluation data set, whose path is ENV/SPLIT/FIRST-LAST. Raises
    SettingsError and ContractError.
    """
    env, split, numbers = [*dataset.path.rsplit("/", 2), "", ""][:3]
    first, dash, last = numbers.partition("-")
    numbered = first.isdecimal() and (last.isdecimal() or not dash)
    if not (env and split and numbered and int(first) <= int(last or first)):
        raise SettingsError(
            f"--eval-prompt-data {dataset.name} {dataset.path}: the path of an evaluation is "
            "ENV/SPLIT/FIRST-LAST with rollq, for example shop/test/0-15"
        )
    sampling = {name: getattr(dataset, name) for name in ("temperature", "top_p", "top_k")}
    sampling = {name: value for name, value in sampling.items() if value is not None}
    sampling |= settings.eval_job.get("sampling", {})
    jobs = []
    for task in range(int(first), int(last or first) + 1):
        own = {"env": env, "split": split, "task": task}
        jobs.append(Job.of({**own, **settings.eval_job, "sampling": sampling}))
    return jobs
