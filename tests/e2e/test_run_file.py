"""The example run file, used for training and for an evaluation as the documents show it."""

import json
from pathlib import Path

from tests.conftest import REPO
from tests.e2e.stack import Stack, read_lines

EXAMPLE = str(REPO / "examples" / "shop.toml")


def test_one_file_for_training_and_evaluation(stack: Stack, tmp_path: Path) -> None:
    stack.engine()
    stack.worker(16)
    out = tmp_path / "shop-1.jsonl"
    done = stack.run("submit", "--config", EXAMPLE, "--run", "shop-1", "--seal", "--json")
    assert done.returncode == 0, done.stderr
    assert "run shop-1: env shop, split train, tasks 0-7, size 4, " in done.stderr
    assert json.loads(done.stdout)["new"] == 32
    again = stack.run("submit", "--run", "shop-1", "--seal", "--json", "--config", EXAMPLE)
    assert json.loads(again.stdout)["known"] == 32
    pulled = stack.run("pull", "--run", "shop-1", "--groups", "8", "--timeout", "120", "--out", str(out))
    assert pulled.returncode == 0, pulled.stderr
    records = read_lines(out)
    assert len(records) == 32
    assert {(record["split"], record["sampling"]["temperature"]) for record in records} == {("train", 1.0)}
    flags = ("--run", "shop-1-test", "--split", "test", "--temperature", "0", "--json")
    measured = stack.run("eval", "--config", EXAMPLE, *flags)
    assert measured.returncode == 0, measured.stderr
    found = json.loads(measured.stdout)
    assert (found["split"], found["tasks"], found["size"], found["done"]) == ("test", 8, 4, 32)
