"""Users of their own for agent commands, so that none can look into the worker or into another
command.

ROLLQ_AGENT_USERS names numbers of users that do not exist. Each running command is one of them, and
all that it leaves behind ends with it. It knows nothing of episodes.
"""

import os
import subprocess
from functools import cache
from queue import SimpleQueue

from rollq.errors import SettingsError

VARIABLE = "ROLLQ_AGENT_USERS"


class AgentUsers:
    """The numbers that are free."""

    def __init__(self, numbers: range) -> None:
        self._use(numbers)

    def _use(self, numbers: range) -> None:
        self._numbers = numbers
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in numbers:
            self._free.put(number)

    @property
    def count(self) -> int:
        return len(self._numbers)

    def keep_share(self, index: int, shares: int) -> None:
        """Leaves the other shares to the other processes of this worker's parent."""
        self._use(self._numbers[index::shares])

    def take(self) -> int:
        """A user that no command has. Processes of a killed worker with this user end."""
        user = self._free.get()
        try:
            _end_all_of(user)
        except BaseException:  # there may be no room for a process
            self._free.put(user)
            raise
        return user

    def give_back(self, user: int) -> None:
        """Ends all processes of the user, who is free again."""
        try:
            _end_all_of(user)
        finally:  # whoever takes it ends what is left
            self._free.put(user)


def _end_all_of(user: int) -> None:
    end = ["/bin/sh", "-c", "kill -KILL -1"]
    subprocess.run(
        end,
        user=user,
        group=user,
        extra_groups=[],
        stderr=subprocess.DEVNULL,
        check=False,
    )


@cache
def agent_users() -> AgentUsers | None:
    """The users of this process; None where commands run as the worker's user. Raises
    SettingsError.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    first, _, last = text.partition("-")
    are_numbers = first.isdecimal() and last.isdecimal()
    if not are_numbers or not 0 < int(first) <= int(last) < 1 << 31:
        raise SettingsError(
            f"{VARIABLE} must be numbers of users, as in 300000-300999, not {text!r}"
        )
    if os.geteuid() != 0:
        raise SettingsError(f"{VARIABLE}: only a worker that is root can run agents as other users")
    return AgentUsers(range(int(first), int(last) + 1))
