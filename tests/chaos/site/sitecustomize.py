"""What a row changes in a worker: CHAOS_SKEW_S its clock, CHAOS_SETTINGS constants of its modules.

With CHAOS_SKEW_S, time.time() is that far off, now ahead and two seconds later behind; each jump that somebody in the
process was told of is a line of the file CHAOS_SKEWED. CHAOS_SETTINGS is `module.NAME=number`, several with a blank.
"""

import importlib
import os
import time

if skew := float(os.environ.get("CHAOS_SKEW_S", "0")):
    real = time.time
    last = 0.0

    def wrong() -> float:
        global last
        now = real()
        off = skew if int(now / 2) % 2 else -skew
        if off != last:
            last = off
            with open(os.environ["CHAOS_SKEWED"], "a") as f:
                f.write(f"{os.getpid()} {off:+g}\n")
        return now + off

    time.time = wrong

for setting in os.environ.get("CHAOS_SETTINGS", "").split():
    name, _, value = setting.partition("=")
    module, _, constant = name.rpartition(".")
    loaded = importlib.import_module(module)
    getattr(loaded, constant)  # there must be one
    setattr(loaded, constant, float(value))
