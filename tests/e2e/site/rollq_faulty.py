"""The shop, whose second step goes wrong as env_args say: `fault` is how, `once` a file that is made the first time."""

import os
import time
from pathlib import Path

from rollq_worker.environments.shop import load as load_shop
from rollq_worker.protocols import Observation


def load(variant):
    return Faulty()


class Panic(BaseException):
    """As pyo3's: no Exception."""


class Faulty:
    name = "faulty"
    version = "faulty 1"
    shop = load_shop(None)

    def splits(self):
        return self.shop.splits()

    def task(self, split, index):
        return self.shop.task(split, index)

    def open(self, split, index, args):
        return FaultyEpisode(self.shop.open(split, index, {}), args)


class FaultyEpisode:
    def __init__(self, environment, args):
        self.environment = environment
        self.fault = getattr(self, args["fault"]) if "fault" in args else None
        self.once = Path(args["once"]) if "once" in args else None
        self.steps = 0
        self.tools = environment.tools
        self.system_prompt = environment.system_prompt

    def reset(self, user):
        return self.environment.reset(user)

    def step(self, action):
        self.steps += 1
        if self.steps == 2 and self.fault is not None and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            if text := self.fault():
                return Observation(text)
        return self.environment.step(action)

    def is_first(self):
        try:
            if self.once:
                self.once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def grade(self):
        return self.environment.grade()

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
        """Holds the interpreter's lock: one operation of very long integers."""
        9**9**9
