"""New passwords, the ACL file of deploy/redis for the Redis that is at hand, and such a server."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import REPO, redis_binary
from tests.servers import HOST, Server

DEPLOY = REPO / "deploy" / "redis"


def made_passwords() -> dict[str, str]:
    out = subprocess.run(
        [DEPLOY / "passwords.sh"], capture_output=True, text=True, check=True
    ).stdout
    return dict(line.split("=", 1) for line in out.splitlines())


def users(env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": os.environ["PATH"], **env}
    return subprocess.run([DEPLOY / "users.sh"], env=env, capture_output=True, text=True)


def reads_are_apart() -> bool:
    """Whether this server knows keys that may only be read, or only be written."""
    version = subprocess.run(
        [redis_binary(), "--version"], capture_output=True, text=True, check=True
    ).stdout
    return int(version.split("v=")[1].split(".")[0]) >= 7


def users_file(made: dict[str, str]) -> str:
    """The ACL file as this server can read it."""
    rules = users(made).stdout
    return rules if reads_are_apart() else re.sub("%[RW]~", "~", rules)


class ServerWithUsers(Server):
    """A Redis that knows these users, with new passwords."""

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        self.made = made_passwords()
        (folder / "users.acl").write_text(users_file(self.made))
        super().__init__(folder, ["--aclfile", str(folder / "users.acl"), *settings])

    def url_of(self, user: str) -> str:
        return f"redis://{user}:{self.made[f'ROLLQ_{user.upper()}_PASSWORD']}@{HOST}:{self.port}/0"
