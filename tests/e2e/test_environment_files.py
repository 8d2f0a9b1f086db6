"""An environment from a file: who plays its jobs, and what is said where no worker can."""

from functools import partial
from pathlib import Path

from rollq.servers.connection import connect
from rollq.snapshot.fleet import read_fleet
from rollq.snapshot.holdups import fleet_holdup
from tests.e2e.stack import Stack
from tests.waiting import until

GAME = """
from rollq_worker.environments.shop import load as load_shop


class Game:
    name, version = "game", "game 1"
    shop = load_shop(None)
    splits, task, open = shop.splits, shop.task, shop.open


def load(variant):
    return Game()
"""


def test_only_a_worker_that_has_the_file_plays_it(stack: Stack, tmp_path: Path) -> None:
    """The one without it gives the jobs back at no cost, and `top` and `stats` say what
    is missing.
    """
    game, other = tmp_path / "game.py", tmp_path / "other" / "game.py"
    other.parent.mkdir()
    game.write_text(GAME)
    other.write_text(GAME + "# another version\n")
    fleet = partial(read_fleet, connect(stack.redis_url, patience_s=0))
    stack.engine("--env", "shop")
    without = stack.worker(2)
    other_version = stack.worker(2, "--env", str(other))
    submitted = stack.run(
        "submit", "--run", "r", "--env", str(game), "--tasks", "0-3", "--size", "2", "--seal"
    )
    assert submitted.returncode == 0 and f"rollq worker --env {game}" in submitted.stdout, submitted
    until(lambda: "no live worker can play them" in fleet_holdup(fleet()))
    assert "there is no such file here" in stack.run("stats", "--run", "r").stdout
    stats = stack.stats("r")
    assert (stats["queued"], stats["dead"], stats["failures"]) == (8, 0, {})

    stack.worker(2, "--env", str(game))
    until(lambda: stack.stats("r")["done"] == 8, 240)  # 10 s each time another one gets a job
    stats = stack.stats("r")
    assert (stats["dead"], stats["failures"], stats["fenced"]) == (0, {}, 0)
    for worker in (without, other_version):
        log = worker.log.read_text()  # type: ignore[attr-defined]
        assert (
            log.count("this worker does not play run r: environment 'game@") == 1
            and "Traceback" not in log
        )


def test_a_file_that_no_worker_can_load(stack: Stack, tmp_path: Path) -> None:
    """It is refused at submission where the file is at hand, and by a worker at its start."""
    game = tmp_path / "game.py"
    game.write_text("import sys\nsys.exit(3)\n")
    for line in (("submit", "--run", "r", "--tasks", "0-3"), ("worker",)):
        refused = stack.run(*line, "--env", str(game))
        assert refused.returncode == 2 and "game.py:load): SystemExit: 3" in refused.stderr, refused
