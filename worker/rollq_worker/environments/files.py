"""Environments from a file without a package: `game.py:load`, or a dataset, `maths.jsonl:number`.

Such an environment is called `game@` and the first digits of its file's hash, or `maths.number@...` where the part
after the colon is not the default. A job carries that name, never a path, and only a worker that was given the same
file plays it. The hash covers the file itself, not what it imports.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from rollq.errors import JobFailure
from rollq.job import NAME
from rollq_worker.environments.dataset import dataset
from rollq_worker.failures import ForOtherWorkers

FILES_VARIABLE = "ROLLQ_ENV_FILES"
"""Environment variable: the files of this process, `game.py:load,other.py:load`. Its child processes have them too."""
DIGITS = 12
"""Hexadecimal digits of the hash in a name."""


class EnvironmentFile(NamedTuple):
    """A file, and the function in it that returns a Domain, or the reward of its answers."""

    path: Path
    function: str
    name: str

    def load(self) -> Callable[[str | None], Any]:
        """What returns the Domain. Raises JobFailure, or what the file raises when it is run."""
        return self._load_python() if self.path.suffix == ".py" else dataset(self.path, reward=self.function)

    def _load_python(self) -> Callable[[str | None], Any]:
        module_name = f"rollq_env_{self.name.replace('@', '_').replace('-', '_').replace('.', '_')}"
        spec = importlib.util.spec_from_file_location(module_name, self.path)
        assert spec is not None and spec.loader is not None, "it ends in .py"
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and pickle look for it there
        try:
            spec.loader.exec_module(module)
            found = getattr(module, self.function, None)
        except BaseException:
            del sys.modules[module_name]
            raise
        if not callable(found):
            raise JobFailure(
                f"{self.path.name} has no function {self.function!r}, which returns the environment's Domain"
            )
        return found  # type: ignore[no-any-return]


def environment_file(env: str) -> EnvironmentFile:
    """The file `game.py:load`. Without a function it is `load`, and `exact` for a dataset. Raises JobFailure when it
    cannot be read."""
    path, _, function = env.partition(":")
    default = "load" if path.endswith(".py") else "exact"
    function = function or default
    try:
        digest = sha256(Path(path).read_bytes()).hexdigest()
    except OSError as e:
        raise JobFailure(f"the environment {env!r} cannot be read: {e.strerror or e}") from e
    stem = Path(path).stem
    if not NAME.fullmatch(stem):
        raise JobFailure(f"the name of the environment's file must match {NAME.pattern}, not {stem!r}")
    title = stem if function == default else f"{stem}.{function}"
    return EnvironmentFile(Path(path).resolve(), function, f"{title}@{digest[:DIGITS]}")


def add_file(env: str) -> str:
    """Have this process and its children know the file. Returns the environment's name. Raises JobFailure."""
    file = environment_file(env)
    known = os.environ.get(FILES_VARIABLE, "")
    entry = f"{file.path}:{file.function}"
    if entry not in known.split(","):
        os.environ[FILES_VARIABLE] = f"{known},{entry}" if known else entry
    return file.name


def known_files() -> Iterator[EnvironmentFile]:
    """The files of this process. Raises JobFailure for one that cannot be read."""
    return (environment_file(env.strip()) for env in os.environ.get(FILES_VARIABLE, "").split(",") if env.strip())


def file_of(name: str) -> EnvironmentFile:
    """The file of that name. Raises ForOtherWorkers when this process has none, or another version of it."""
    title = name.partition("@")[0]
    known = list(known_files())
    for file in known:
        if file.name == name:
            return file
    other = next((file.name for file in known if file.name.startswith(f"{title}@")), None)
    have = f"there is no such file here, but {other}" if other else "there is no such file here"
    raise ForOtherWorkers(f"environment {name!r}: {have}; give every worker the same file: rollq worker --env FILE")
