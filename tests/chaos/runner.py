"""Runs one row of the matrix once, from its first process to its result."""

import time
import traceback
from functools import partial
from pathlib import Path

from tests.chaos import result as results
from tests.chaos.fault_run import FaultRun
from tests.chaos.processes import Skip
from tests.chaos.random_faults import inject_at_random
from tests.chaos.result import Result
from tests.chaos.rows import Row, load

GRACE_S = 100.0
"""Seconds that a storm has to end in: the hold of a killed consumer lasts a minute."""


def run_row(row: Row, seed: int, folder: Path) -> Result:
    """Run the row in its own folder, which is kept when something is wrong."""
    start = time.monotonic()
    result = Result(row=row.name, seed=seed)
    run = FaultRun(folder, seed, row.deadline_s)
    try:
        row.inject(run)
        run.finish()
        result.recovered_s = None
        results.fill(result, run)
    except Skip as e:
        result.skipped = str(e)
    except Exception as e:
        # One row's failure is its result; the other rows go on.
        result.wrong.append(f"{type(e).__name__}: {e}")
        (folder / "error.txt").write_text(traceback.format_exc())
        try:
            results.fill(result, run)
        except Exception as e:
            result.wrong.append(f"no result: {type(e).__name__}: {e}")
            result.lost = result.lost or 1
    finally:
        run.close()
    result.wall_s = time.monotonic() - start
    return result


def run_by_name(name: str, seed: int, folder: Path, storm_s: float = 0.0) -> Result:
    """Run a row, or a storm. Call it in a process of its own: children end with the thread that
    started them.
    """
    if storm_s:
        inject = partial(inject_at_random, seconds=storm_s)
        row = Row(name="storm", inject=inject, deadline_s=storm_s * 2 + GRACE_S)
    else:
        row = load()[name]
    return run_row(row, seed, folder)
