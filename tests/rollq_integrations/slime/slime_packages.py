"""slime's classes for tests: rollq's stand-in, which holds the recorded rules, and slime's own
source where it is.

Its own: a folder named by ROLLQ_TEST_SLIME that holds `slime/` (0.3.1: commit 624b824), or an
installed slime. It needs torch; ray, SGLang and what else only its processes need are replaced by
empty modules.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.packages import imported_anew

STAND_IN = Path(__file__).resolve().parents[3] / "examples/slime_stand_in"
NAMED = os.environ.get("ROLLQ_TEST_SLIME")
ABSENT = ("ray", "sglang", "sglang_router", "wandb", "tensorboard", "megatron", "omegaconf")
"""Packages that slime imports and that nothing here calls."""


def own_slime() -> Path | None:
    """The folder that holds slime's own package."""
    if NAMED:
        return Path(NAMED)
    found = importlib.util.find_spec("slime")
    return Path(str(found.origin)).parents[1] if found and found.origin else None


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Empty(spec.name)
        module.remote = lambda *given, **_: given[0] if given else lambda decorated: decorated  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def slime_at(folder: Path) -> Iterator[None]:
    """`import slime` finds the package in this folder."""
    finder = _EmptyModules()
    with imported_anew("slime", *ABSENT):
        sys.path.insert(0, str(folder))
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.path.remove(str(folder))
            sys.meta_path.remove(finder)


def arguments(**changes: Any) -> SimpleNamespace:
    """slime's arguments that the adapter and the conversion read, with slime's defaults: 2 groups
    of 2 samples.
    """
    defaults = {
        "rollq_run": "r",
        "rollout_function_path": "rollq_integrations.slime.generate_rollout",
        "eval_function_path": "rollq_integrations.slime.generate_rollout",
        "rollout_batch_size": 2,
        "over_sampling_batch_size": 2,
        "n_samples_per_prompt": 2,
        "rollout_global_dataset": True,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_temperature": 1.0,
        "use_rollout_routing_replay": False,
        "partial_rollout": False,
        "group_rm": False,
        "custom_rm_path": None,
        "rm_type": None,
        "reward_key": None,
        "dynamic_sampling_filter_path": None,
        "rollout_sample_filter_path": None,
        "rollout_all_samples_process_path": None,
        "custom_reward_post_process_path": None,
        "custom_convert_samples_to_train_data_path": None,
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "release_train": False,
        "update_weights_interval": 1,
        "global_batch_size": 4,
        "use_dynamic_batch_size": False,
        "max_tokens_per_gpu": None,
        "micro_batch_size": 1,
        "balance_data": False,
        "balance_by_flops": False,
        "log_reward_category": None,
        "eval_datasets": [],
    }
    return SimpleNamespace(**{**defaults, **changes})


def own_conversion(args: Any, samples: list[Any], dp_size: int = 1) -> list[dict[str, Any]]:
    """What slime's RolloutManager makes of a rollout function's samples: the data of each rank."""
    manager_type = importlib.import_module("slime.ray.rollout").RolloutManager
    rollout = sys.modules["slime.ray.rollout"]
    rollout.ray.put = lambda data, **_: data  # type: ignore[attr-defined]
    rollout.Box = lambda data: data  # type: ignore[attr-defined]
    manager = object.__new__(manager_type)
    manager.args = args
    manager.custom_reward_post_process_func = (
        rollout.load_function(args.custom_reward_post_process_path)
        if args.custom_reward_post_process_path
        else None
    )
    manager.custom_convert_samples_to_train_data_func = None
    manager.train_parallel_config = {
        "dp_size": dp_size,
        "cp_size": 1,
        "vpp_size": 1,
        "microbatch_group_size_per_vp_stage": 1,
    }
    args.load_debug_rollout_data = None
    base_types = importlib.import_module("slime.rollout.base_types")
    manager.generate_rollout = lambda *_, evaluation: base_types.RolloutFnTrainOutput(
        samples=samples
    )
    manager.data_source = None
    data, _ = manager._get_rollout_data(rollout_id=0)
    return list(manager._split_train_data_by_dp(manager._convert_samples_to_train_data(data)))


def recorded_conversion(args: Any, samples: list[Any]) -> dict[str, list[Any]]:
    """The same by the rules of slime 0.3.1 as recorded in docs/slime.md."""
    nested = any(isinstance(member, list) for group in samples for member in group)
    assert all(isinstance(member, list) == nested for group in samples for member in group), (
        "mixed nesting"
    )
    flat = [
        row for group in samples for member in group for row in (member if nested else [member])
    ]
    executions = {row.rollout_id for row in flat}
    assert (
        len(executions)
        == args.rollout_batch_size * args.n_samples_per_prompt
        >= args.global_batch_size
    )
    for row in flat:
        assert (
            len(row.loss_mask)
            == len(row.rollout_log_probs)
            == row.response_length
            <= len(row.tokens)
        )
        assert all(
            logprob == 0.0
            for mask, logprob in zip(row.loss_mask, row.rollout_log_probs, strict=True)
            if not mask
        )
        assert all(type(token) is int for token in row.tokens)
    return {
        "tokens": [row.tokens for row in flat],
        "loss_masks": [row.loss_mask for row in flat],
        "rollout_log_probs": [row.rollout_log_probs for row in flat],
        "rollout_ids": [row.rollout_id for row in flat],
        "truncated": [int(row.status.value == "truncated") for row in flat],
    }
