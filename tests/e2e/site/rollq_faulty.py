"""The shop, whose second step goes wrong as env_args say: `fault` is how, `once` a file that is made the first time."""

import os
import time
from pathlib import Path

from rollq_worker.environments.shop import load as load_shop


def load(variant):
    return Faulty()


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
            self.fault()
        return self.environment.step(action)

    def grade(self):
        return self.environment.grade()

    def error(self):
        raise ZeroDivisionError("the environment broke")

    def memory(self):
        raise MemoryError

    def quit(self):
        raise SystemExit(3)

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
