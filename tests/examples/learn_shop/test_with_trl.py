"""The whole of it on the sampler: TRL's trainer is killed before its first checkpoint, and begins
again.
"""

from pathlib import Path

import pytest

from examples.learn_shop.train import Options
from examples.learn_shop.with_trl import run


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*")
@pytest.mark.parametrize("trainer", ["grpo", "async_grpo"])
def test_each_group_is_acknowledged_once(trainer: str, models: list[str], tmp_path: Path) -> None:
    options, lines = Options(steps=5, groups=2, size=2, held_out=4), list[str]()
    results = run(
        trainer,
        Path(models[0]),
        tmp_path / "trl",
        options,
        1,
        lines.append,
        engine_url=None,
        sglang=None,
    )
    steps = [
        step["step"] for step in results["steps"]
    ]  # the killed trainer may have come further than it was asked to
    assert steps.count(1) == 2 and steps[-5:] == [1, 2, 3, 4, 5]
    assert results["stats"]["groups_acked"] == 10 and results["stats"]["version_breaks"] == 0
    assert any("killed after step 1" in line for line in lines) and len(results["held_out"]) == 2
