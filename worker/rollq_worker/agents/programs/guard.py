"""Ends the processes of an agent's command: when the command has ended, or when its worker dies.

A shell waits for the end of a pipe whose other end only the worker has. It knows nothing of
episodes.
"""

import subprocess
from contextlib import suppress

SHELL = """
read -r group variable
[ "$group" ] || exit
read -r _ || { kill -s TERM -- "-$group"; sleep 3; kill -s KILL -- "-$group"; }
for look in 1 2; do
  for found in $(grep -lsxzF -- "$variable" /proc/[0-9]*/environ); do
    found=${found#/proc/}
    kill -s KILL "${found%/environ}"
  done
  [ $look = 2 ] || sleep 0.1
done
"""
"""A line says that the command has ended; without one, it ends it as `AgentProcess.stop` does.
Coding agents start each shell command in a session of its own; these still have the variable (Linux
only). It looks twice, because a process that just starts its program shows no variables.
"""


class Guard:
    """A child process that outlives this one."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SHELL],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
            text=True,
            bufsize=1,
        )

    def watch(self, group: int, variable: str) -> None:
        """Has this process group end with the worker, and all processes with the environment
        variable, written NAME=VALUE.
        """
        assert self._shell.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):  # another program of this user has ended it
            self._shell.stdin.write(f"{group} {variable}\n")

    def close(self) -> None:
        """The command has ended. Returns once its processes have, too. Safe to repeat."""
        if self._shell.returncode is None:
            self._shell.communicate("\n")
