"""Files and folders that jobs name by their content: `game@0123456789ab`, the stem and the first
digits of its hash.

A job carries such a name, never a path, and only a process that was given the same file uses it.
The hash covers the file itself, not what it imports. It does not know what the files are for.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from rollq.errors import ForOtherWorkers, JobFailure
from rollq.job import NAME

DIGITS = 12
"""Hexadecimal digits of the hash in a name."""


class NamedFile(NamedTuple):
    """A file, and the part of it that is meant: a function, or another word that follows
    the colon.
    """

    path: Path
    part: str
    name: str

    @property
    def written(self) -> str:
        """The name that a user would write."""
        if self.part:
            return f"{self.path}:{self.part}"
        return str(self.path)

    def check(self) -> None:
        """Raises ForOtherWorkers when the file is not the one that it was when it got its name."""
        try:
            same = self.name.endswith(f"@{_digest(self.path)}")
        except OSError:
            same = False
        if not same:
            raise ForOtherWorkers(
                f"{self.name}: {self.path} has changed since; repeat what names the file"
            )

    def run(self) -> ModuleType:
        """The Python file as a module, which has just been run. Raises JobFailure for an import of
        a file beside it, and what the file raises.
        """
        module_name = "rollq_file_" + "".join(c if c.isalnum() else "_" for c in self.name)
        spec = importlib.util.spec_from_file_location(module_name, self.path)
        assert spec is not None, "it ends in .py"
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and pickle look for it there
        try:
            # Not by the loader: it may run what another version of the file was compiled to.
            exec(compile(self.path.read_bytes(), str(self.path), "exec"), vars(module))
            self.check()
        except BaseException as e:
            del sys.modules[module_name]
            beside = self._beside(e.name or "") if isinstance(e, ModuleNotFoundError) else ""
            if not beside:
                raise
            raise JobFailure(
                f"{self.name}: {self.path.name} imports {beside} from beside it, and workers get "
                "one file: make the two a package (rollq env new writes one)"
            ) from e
        return module

    def _beside(self, module: str) -> str:
        """The file or folder next to this one that the module would be; "" without one."""
        name = module.partition(".")[0]
        for beside in (f"{name}.py", name):
            if name and self.path.with_name(beside).exists():
                return beside
        return ""


class NamedFiles:
    """The files of one kind that this process knows, and its child processes with it."""

    def __init__(
        self,
        variable: str,
        *,
        what: str,
        flag: str,
        default: Callable[[Path], str],
        folders: Collection[str] = (),
    ) -> None:
        """`variable` is the environment variable that lists them, with commas. `what` and `flag`
        are for errors: what such a file is, and what gives a worker one. `default` is the part that
        a file without a colon means. With one of the parts `folders`, a folder is meant.
        """
        self.variable = variable
        self._what = what
        self._flag = flag
        self._default = default
        self._folders = folders

    def file(self, text: str) -> NamedFile:
        """The file that a user names, `game.py:load` or `game.py`. Raises JobFailure when it cannot
        be read.
        """
        where, _, part = text.partition(":")
        path = Path(where).absolute()
        if not NAME.fullmatch(path.stem):
            raise JobFailure(
                f"the name of the {self._what}'s file must match {NAME.pattern}, not {path.stem!r}"
            )
        if "," in str(path):
            raise JobFailure(
                f"the {self._what} {text!r} has a comma in its path, which {self.variable} cannot "
                "have"
            )
        try:
            digest = _digest_of_folder(path) if part in self._folders else _digest(path)
        except OSError as e:
            raise JobFailure(f"the {self._what} {text!r} cannot be read: {e.strerror or e}") from e
        default = self._default(path)
        title = path.stem if part in ("", default) else f"{path.stem}.{part}"
        return NamedFile(path, part or default, f"{title}@{digest}")

    def add(self, text: str) -> str:
        """Gives the file to this process and its children. Returns its name. Raises JobFailure."""
        file = self.file(text)
        listed = self._listed()
        if file.written not in listed:
            os.environ[self.variable] = ",".join((*listed, file.written))
        return file.name

    def readable(self) -> list[NamedFile]:
        """The files of this process that can be read now."""
        return self._read()[0]

    def of(self, name: str) -> NamedFile:
        """The file of that name. Raises ForOtherWorkers when this process has none, or another
        version of it.
        """
        files, problems = self._read()
        for file in files:
            if file.name == name:
                return file
        title = name.partition("@")[0]
        others = [f"but {file.name}" for file in files if file.name.startswith(f"{title}@")]
        have = ", ".join(["there is no such file here", *others[:1], *problems])
        raise ForOtherWorkers(
            f"{self._what} {name!r}: {have}; give every worker the same file: rollq worker "
            f"{self._flag} FILE"
        )

    def _listed(self) -> list[str]:
        texts = os.environ.get(self.variable, "").split(",")
        return [text.strip() for text in texts if text.strip()]

    def _read(self) -> tuple[list[NamedFile], list[str]]:
        """The files, and the problems of those that cannot be read. Jobs of the others must not
        suffer from them.
        """
        files = []
        problems = []
        for text in self._listed():
            try:
                files.append(self.file(text))
            except JobFailure as e:
                problems.append(f"and {e}")
        return files, problems


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _digest_of_folder(path: Path) -> str:
    """SHA-256 of the names and contents of its files, but for those of git."""
    digest = hashlib.sha256()
    os.listdir(path)  # raises what glob passes over
    for below in sorted(path.rglob("*")):
        name = below.relative_to(path)
        if below.is_file() and ".git" not in name.parts:
            digest.update(os.fsencode(f"{name}\0") + hashlib.sha256(below.read_bytes()).digest())
    return digest.hexdigest()[:DIGITS]
