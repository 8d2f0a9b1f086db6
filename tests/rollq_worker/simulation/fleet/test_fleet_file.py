"""The fleet's file: what is read, and the error for what cannot be."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import SettingsError
from rollq_worker.commands.simulate.command import EXAMPLE
from rollq_worker.simulation.amounts import WIDEST, Amount
from rollq_worker.simulation.fleet.fleet import Fleet, Workers, read_fleet
from rollq_worker.simulation.fleet.traces import Episode, episode

LEAST = """
[engines]
count = 1
turn_s = 2
[workers]
processes = 1
[jobs]
turns = 8
prompt_tokens = 100
sampled_tokens = 10
observed_tokens = { mean = 20, p99 = 50 }
[trainer]
groups = 1
"""
SHAPE = (
    "step_s = 0.01\nprefill_token_s = 1e-5\nrunning_s = 1e-5\nkv_token_s = 1e-9\nkv_tokens = 100_000\n"
    "max_running = 64\nchunk_tokens = 8192"
)


def fleet(tmp_path: Path, text: str, **changes: Any) -> Fleet:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return read_fleet(path, changes)


def test_the_example_is_a_fleet():
    found = read_fleet(EXAMPLE)
    assert found.slots == 1024 and found.cores == 8
    assert found.engines.turn_s == Amount(2.0, 8.0)


def test_the_example_names_every_key(tmp_path: Path):
    """With its comments taken off, the alternatives are what is refused, and nothing else."""
    text = EXAMPLE.read_text().replace("# trace", "#trace").replace("# {", "#{")
    active = "\n".join(line.removeprefix("# ") for line in text.splitlines() if not line.startswith(("# A ", "#{")))
    with pytest.raises(SettingsError, match="give turn_s or shape, not both"):
        fleet(tmp_path, active)
    assert fleet(tmp_path, active.replace("turn_s = {", "#")).engines.shape is not None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count = 1", "count = 0", r"\[engines\] count: expected a whole number of at least 1, not 0"),
        ("count = 1", "count = true", r"\[engines\] count: expected a whole number"),
        ("count = 1", "cuont = 1", r"\[engines\]: count is missing"),
        ("turn_s = 2", "turn_s = 2\nturns_s = 3", r"\[engines\]: 'turns_s' is not a key; did you mean turn_s\?"),
        ("turn_s = 2", "turn_s = -1", r"\[engines\] turn_s: expected a number, or \{ mean = M, p99 = P \}, not -1"),
        ("turn_s = 2", "turn_s = inf", r"\[engines\] turn_s: expected"),
        ("turn_s = 2", "", r"\[engines\]: turn_s is missing"),
        ("turn_s = 2", f"turn_s = 2\n[engines.shape]\n{SHAPE}", "give turn_s or shape, not both"),
        ("turn_s = 2", f"[engines.shape]\n{SHAPE}\nspeed = 1", r"\[engines.shape\]: 'speed' is not a key"),
        ("turn_s = 2", f"[engines.shape]\n{SHAPE[20:]}", r"\[engines.shape\]: .* is missing|is not TOML"),
        ("turn_s = 2", f"[engines.shape]\n{SHAPE}".replace("100_000", "1000"), "an engine could not hold it"),
        ("mean = 20", "mean = 60", r"\[jobs\] observed_tokens: no lognormal distribution has mean 60"),
        ("p99 = 50 ", "p98 = 50 ", r"\[jobs\] observed_tokens: p99 is missing"),
        ("[jobs]", "[job]", r"\[jobs\]: turns is missing"),
        ("turns = 8", 'turns = 8\ntrace = "x.jsonl"', r"\[jobs\]: give turns or trace, not both"),
        ("groups = 1", "groups = 300", "a batch of 300 groups never comes while at most 256 groups are ahead"),
        ("[workers]", "workers = 3\n[x]", "is not TOML|expected a table|is not a key"),
        ("processes = 1", "processes = 1\nshared = 1", r"\[workers\] shared: expected true or false, not 1"),
        ("[trainer]", "[[trainer]]", r"trainer: expected a table"),
        ("groups = 1", "groups =", "is not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, old: str, new: str, message: str):
    assert old in LEAST
    with pytest.raises(SettingsError, match=message) as error:
        fleet(tmp_path, LEAST.replace(old, new))
    assert "fleet.toml" in str(error.value)


def test_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"none.toml cannot be read: No such file"):
        read_fleet(tmp_path / "none.toml")


def test_a_change_overrides_the_file(tmp_path: Path):
    changes = {"workers.concurrency": 7, "trainer.max_staleness": 0}
    found = fleet(tmp_path, LEAST, **changes)
    assert (found.workers.concurrency, found.trainer.max_staleness) == (7, 0)
    with pytest.raises(SettingsError, match="'concurency' is not a key; did you mean concurrency"):
        fleet(tmp_path, LEAST, **{"workers.concurency": 7})


@given(st.integers(1, 2000), st.integers(1, 50))
def test_a_scaled_fleet_has_about_so_many_slots(rollouts: int, processes: int):
    found = Fleet(workers=Workers(processes=processes, concurrency=8)).scaled(rollouts)
    assert abs(found.slots - rollouts) <= max(4, 8 if rollouts < 8 else 4)


@given(st.floats(0.01, 100), st.floats(1, WIDEST))
def test_draws_have_the_mean_and_the_percentile(mean: float, ratio: float):
    from random import Random
    from statistics import NormalDist

    amount, random = Amount(mean, mean * ratio), Random(0)
    values = sorted(amount.draw(random) for _ in range(20_000))
    assert values[int(0.99 * len(values))] == pytest.approx(mean * ratio, rel=0.2)
    if ratio < 4:
        assert sum(values) / len(values) == pytest.approx(mean, rel=0.1)
    assert NormalDist().inv_cdf(0.99) == pytest.approx(2.3263, abs=1e-4)


MASKS = st.tuples(
    st.integers(0, 9), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1), st.booleans()
)


@given(MASKS)
def test_a_mask_is_the_episode_that_wrote_it(parts: tuple[int, list[tuple[int, int]], bool]):
    prompt, turns, answered = parts
    if not answered:
        turns = [*turns[:-1], (turns[-1][0], 0)]
    mask = [0] * prompt + [bit for sampled, observed in turns for bit in [1] * sampled + [0] * observed]
    found = episode(mask)
    assert found == Episode(prompt, tuple(turns)) and found.tokens == len(mask)


@pytest.mark.parametrize("line", ["", "{}", '{"mask": []}', '{"mask": [0, 0]}', '{"mask": 3}', "[1]", "nonsense"])
def test_a_file_that_is_no_trace_is_an_error(tmp_path: Path, line: str):
    (tmp_path / "x.jsonl").write_text(line)
    text = LEAST
    for key in ("turns = 8", "prompt_tokens = 100", "sampled_tokens = 10"):
        text = text.replace(key, "")
    text = text.replace("observed_tokens = { mean = 20, p99 = 50 }", 'trace = "x.jsonl"')
    with pytest.raises(SettingsError, match="no trajectory"):
        fleet(tmp_path, text)
