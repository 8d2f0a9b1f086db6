import json
import sys
from pathlib import Path

sys.path.insert(0, "/app")


def odd(median):
    return median([9, 1, 5]) == 5


def even(median):
    return median([4, 1, 3, 2]) == 2.5


def untouched(median):
    numbers = [3, 1, 2]
    return median(numbers) == 2 and numbers == [3, 1, 2]


def empty(median):
    try:
        median([])
    except ValueError:
        return True
    return False


def holds(check):
    try:
        from median import median

        return bool(check(median))
    except Exception as error:
        print(f"{check.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
        return False


checks = [odd, even, untouched, empty]
reward = sum(map(holds, checks)) / len(checks)
Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": reward}))
