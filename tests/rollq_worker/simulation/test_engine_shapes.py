"""Shapes of engines in TOML files."""

from pathlib import Path

import pytest

from rollq.errors import SettingsError
from rollq_worker.simulation.engine_model import EngineShape
from rollq_worker.simulation.engine_shapes import read_shape

GOOD = """
[engines.shape]
step_s = 0.01
prefill_token_s = 1e-5
running_s = 0
kv_token_s = 1e-8
kv_tokens = 400_000
max_running = 256
chunk_tokens = 8192
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "shape.toml"
    path.write_text(text)
    return path


def test_a_shape_is_read_beside_other_tables(tmp_path: Path) -> None:
    shape = read_shape(written(tmp_path, "[jobs]\nturns = 3\n" + GOOD + "prefix_cache = false\n"))
    assert shape == EngineShape(
        step_s=0.01,
        prefill_token_s=1e-5,
        running_s=0.0,
        kv_token_s=1e-8,
        kv_tokens=400_000,
        max_running=256,
        chunk_tokens=8192,
        prefix_cache=False,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"no table \[engines.shape\]"),
        (GOOD.replace("step_s", "step"), "step_s is missing"),
        (GOOD + "steps = 3", "'steps' is not a key; did you mean step_s"),
        (GOOD.replace("256", "0"), "max_running: expected a whole number"),
        (GOOD.replace("0.01", "0"), "step_s of an engine's shape is above 0"),
        (GOOD.replace("0.01", "'fast'"), "step_s: expected a number"),
        ("[engines", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        read_shape(written(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_shape(tmp_path / "none.toml")
