"""A wrong clock: with CHAOS_SKEW_S set, time.time() is that far off, now ahead and two seconds later behind."""

import os
import time

if skew := float(os.environ.get("CHAOS_SKEW_S", "0")):
    real = time.time

    def wrong() -> float:
        now = real()
        return now + (skew if int(now / 2) % 2 else -skew)

    time.time = wrong
