"""Changes a worker's clock (CHAOS_SKEW_S) and constants of its modules (CHAOS_SETTINGS).

CHAOS_SKEW_S: time.time() is off by that many seconds, ahead and behind in turns of two seconds.
Every jump that the process has read is a line of the file CHAOS_CLOCK_JUMPS. CHAOS_SETTINGS:
`module.NAME=number`, separated by spaces.
"""

import importlib
import os
import time

if skew := float(os.environ.get("CHAOS_SKEW_S", "0")):
    real = time.time
    last = 0.0

    def skewed() -> float:
        global last
        now = real()
        off = skew if int(now / 2) % 2 else -skew
        if off != last:
            last = off
            with open(os.environ["CHAOS_CLOCK_JUMPS"], "a") as f:
                f.write(f"{os.getpid()} {off:+g}\n")
        return now + off

    time.time = skewed

for setting in os.environ.get("CHAOS_SETTINGS", "").split():
    name, _, value = setting.partition("=")
    module, _, constant = name.rpartition(".")
    loaded = importlib.import_module(module)
    getattr(loaded, constant)  # fails when there is none
    setattr(loaded, constant, float(value))
