"""The shop with a fault in its second step. In env_args, `fault` names it; the first one makes the
file `once`. Closing makes the file `closed`, and `reset` returns the `opening`.
"""

import os
import time
from pathlib import Path

from rollq.env import Observation
from rollq_worker.environments.shop import load as load_shop


def load(variant):
    return Faulty()


class Panic(BaseException):
    """Like pyo3's, not an Exception."""


class Faulty:
    name = "faulty"
    version = "faulty 1"
    shop = load_shop(None)
    splits, task = shop.splits, shop.task

    def open(self, split, index, args):
        return FaultyEpisode(self.shop.open(split, index, {}), args)


class FaultyEpisode:
    def __init__(self, environment, args):
        self.environment = environment
        self.fault = getattr(self, args["fault"]) if "fault" in args else None
        self.once = Path(args["once"]) if "once" in args else None
        if "closed" in args:
            self.close = Path(args["closed"]).touch
        self.steps = 0
        self.tools, self.system_prompt = environment.tools, environment.system_prompt
        self.reset, self.grade = environment.reset, environment.grade
        if "opening" in args:
            self.reset = lambda user: args["opening"]

    def step(self, action):
        self.steps += 1
        if (
            self.steps == 2
            and self.fault is not None
            and self.is_first()
            and (text := self.fault())
        ):
            return Observation(text)
        return self.environment.step(action)

    def is_first(self):
        """One of all episodes, which come here at the same time, makes the file."""
        try:
            if self.once:
                self.once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def error(self):
        raise ZeroDivisionError("the environment broke")

    def memory(self):
        raise MemoryError

    def quit(self):
        raise SystemExit(3)

    def panic(self):
        raise Panic("a panic in Rust code")

    def recursion(self):
        self.recursion()

    def flood(self):
        return "x" * (64 << 20)

    def chatter(self):
        print("said by an environment\n" * 100_000)
        raise ZeroDivisionError("the environment broke")

    def killed(self):
        os._exit(137)

    def sleep(self):
        time.sleep(3600)

    def loop(self):
        while True:
            pass

    def freeze(self):
        """One operation on very long integers, which holds the interpreter's lock."""
        9**9**9
