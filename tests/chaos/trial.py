"""One trial: a row of the matrix played once, from its first process to its account."""

import time
import traceback
from functools import partial
from pathlib import Path

from tests.chaos import account as accounts
from tests.chaos.account import Account
from tests.chaos.parts import Skip
from tests.chaos.rows import Row, load
from tests.chaos.storm import Outside, storm

GRACE_S = 100.0
"""What a storm's run may take to settle: a killed consumer's hold lasts a minute."""


def play(row: Row, seed: int, folder: Path) -> Account:
    """One row, once, in its own folder, which is kept when something is wrong."""
    start = time.monotonic()
    account = Account(row=row.name, seed=seed)
    scene = row.scene(folder, seed, row.deadline_s)
    try:
        row.inject(scene)
        scene.settle()
        account.recovered_s = None
        accounts.settle(account, scene)
    except Skip as e:
        account.skipped = str(e)
    except Exception as e:
        # The boundary of a row: whatever broke it is its result, and the others go on.
        account.wrong.append(f"{type(e).__name__}: {e}")
        (folder / "error.txt").write_text(traceback.format_exc())
        try:
            accounts.settle(account, scene)
        except Exception as e:
            account.wrong.append(f"no account: {type(e).__name__}: {e}")
            account.lost = account.lost or 1
    finally:
        scene.close()
    account.wall_s = time.monotonic() - start
    return account


def run(name: str, seed: int, folder: Path, storm_s: float = 0.0) -> Account:
    """One row by its name; in a process of its own, for children live and die with the thread that started them."""
    if storm_s:
        inject = partial(storm, seconds=storm_s)
        row = Row(name="storm", inject=inject, deadline_s=storm_s * 2 + GRACE_S, scene=Outside)
    else:
        row = load()[name]
    return play(row, seed, folder)
