"""The tests of the ledger, of servers, of processes and of commands on each Redis server that is
here.

`make test-redis` runs them on the servers on PATH and on those that installed packages carry, one
after the other.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rollq.processes.embedded_redis import binaries

TESTS = (
    "tests/rollq/ledger",
    "tests/rollq/servers",
    "tests/rollq/processes",
    "tests/rollq/commands",
)


def main() -> int:
    failed = []
    for server in {os.path.realpath(path): path for path in binaries()}.values():
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "redis-server").symlink_to(server)  # before any other on PATH
            env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
            version = subprocess.run(
                ["redis-server", "--version"], env=env, capture_output=True, text=True, check=True
            )
            print(f"On {server}: {version.stdout}", flush=True)
            tests = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-n",
                "4",
                "--dist",
                "worksteal",
                *TESTS,
                *sys.argv[1:],
            ]
            if subprocess.run(tests, env=env).returncode:
                failed.append(server)
    print(f"failed on {', '.join(failed)}" if failed else "passed on each of them")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
