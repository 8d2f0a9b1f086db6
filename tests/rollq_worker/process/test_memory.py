"""A worker that has loaded everything."""

import subprocess
import sys

SCRIPT = """
import gc
from rollq_worker.process.memory import settle

class Cycle:
    def __init__(self):
        self.own = self

kept = [Cycle() for _ in range(1000)]
del kept[500:]
settle()
print(gc.get_freeze_count() > 500, sum(type(found) is Cycle for found in gc.get_objects()))
one = Cycle()
settle(collect=False)
print(sum(type(found) is Cycle for found in gc.get_objects()))
"""


def test_what_stays_is_not_walked_again_and_what_was_freed_is_gone() -> None:
    said = subprocess.check_output([sys.executable, "-c", SCRIPT], text=True).split()
    assert said == ["True", "0", "0"]
