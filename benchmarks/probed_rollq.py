"""`rollq` with one more thread, which only sleeps and notes how late it woke: what a thread of that
process must wait.

With `control` in place of a command, the thread is alone in its process: what remains are the
machine's own pauses.

    python probed_rollq.py OUT COMMAND ...

OUT gets a line a second: the monotonic time and the longest delay since the line before, in
seconds.
"""

import sys
import threading
import time
from pathlib import Path

SLEEP_S = 0.01
LINE_EVERY_S = 1.0


def probe(out: Path) -> None:
    longest = 0.0
    line_due = time.monotonic() + LINE_EVERY_S
    with out.open("w", buffering=1) as lines:
        while True:
            due = time.monotonic() + SLEEP_S
            time.sleep(SLEEP_S)
            now = time.monotonic()
            longest = max(longest, now - due)
            if now >= line_due:
                lines.write(f"{now} {longest}\n")
                longest = 0.0
                line_due = now + LINE_EVERY_S


def longest_delay(out: Path, began: float, ended: float) -> float:
    """The longest delay in seconds that was noted between two monotonic times."""
    noted = [
        tuple(map(float, line.split()))
        for line in out.read_text().splitlines()
        if line.count(" ") == 1
    ]
    return max(
        (delay for at, delay in noted if began + LINE_EVERY_S <= at <= ended + LINE_EVERY_S),
        default=0.0,
    )


def main(out: str, *words: str) -> None:
    if words == ("control",):
        print("control: ready", flush=True)
        probe(Path(out))
    threading.Thread(target=probe, args=(Path(out),), name="probe", daemon=True).start()
    from rollq.cli import main as rollq

    sys.argv = ["rollq", *words]
    sys.exit(rollq())


if __name__ == "__main__":
    main(*sys.argv[1:])
