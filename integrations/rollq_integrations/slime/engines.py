"""slime's engines as rollq's workers need them: their addresses, and the training step of the
weights that they serve.

slime updates its engines itself. It counts the updates, and its engines report that count as their
weight version: the first update, before the first rollout, makes it `update_weight_start_version` +
1 (slime/backends/megatron_utils).
"""

from typing import Any

from rollq import Client, SettingsError
from rollq.errors import SyncError
from rollq.weights import Fleet, router_engines


def engine_urls(args: Any) -> list[str]:
    """The engines behind slime's router. Raises SyncError when it does not list them."""
    return router_engines(f"http://{args.sglang_router_ip}:{args.sglang_router_port}")


def served_version(urls: list[str]) -> int:
    """slime's number of the weights that its engines serve. Raises SyncError when none of them
    tells.

    slime gives all engines the same weights before it asks for a rollout; one that is being
    restarted does not answer.
    """
    answers = Fleet(urls).versions()
    versions = {url: version for url, version in answers.items() if version is not None}
    numbers = {int(version) for version in versions.values() if version.isdecimal()}
    if len(numbers) != 1:
        raise SyncError(
            "slime's engines serve no common version of slime's (a whole number): "
            f"{versions or 'none answers'}"
        )
    return numbers.pop()


def step_of(version: int, first: int, args: Any) -> int:
    """The training step of slime's weight version: the number of rollouts that these weights were
    trained on.

    `first` is the rollout with which this process began. train.py updates after each rollout,
    train_async.py after each whole multiple of `update_weights_interval`. Weights of a checkpoint
    between two of those count as the lower one, whose version has the same name: their tokens only
    look older.
    """
    updates = version - 1 - getattr(args, "update_weight_start_version", 0)
    return (first // _interval(args) + updates) * _interval(args)


def publish(
    client: Client, args: Any, first: int, urls: list[str], trained: int
) -> tuple[int, str]:
    """Publishes the policy that slime's engines serve, and returns its step and its weight version.
    `trained`: number of rollouts that slime has trained on at most.

    Raises SyncError, and SettingsError when the step cannot be right or the run knows the version
    as another step.
    """
    version = served_version(urls)
    step = step_of(version, first, args)
    name = str(version)
    if step > trained:
        raise SettingsError(
            f"slime's weight version {name} would be of step {step}, and slime has trained on "
            f"{trained} rollouts. train.py updates after each: leave out "
            "--update-weights-interval, which is train_async.py's"
        )
    published = client.published()
    if published is None or (published.step, published.weight_version) != (step, name):
        try:
            client.publish(step, name)
        except SettingsError as e:
            raise SettingsError(
                f"{e}. slime starts at rollout {first}. So that a weight version keeps its meaning "
                f"over a restart, put `update_weight_start_version: {first // _interval(args)}` "
                "into the file of --custom-config-path, or use another run"
            ) from None
    return step, name


def _interval(args: Any) -> int:
    """Rollouts between two updates."""
    return 1 if args.release_train else int(args.update_weights_interval)
