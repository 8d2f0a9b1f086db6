"""A Redis that belongs to one test, which may stop it and start it again."""

import signal
from pathlib import Path

from rollq.processes.embedded_redis import command
from tests.conftest import free_port, started_redis


class OwnRedis:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        self.process = started_redis(command(self.port, self.folder), self.port)

    def stop(self, number: int) -> None:
        self.process.send_signal(number)
        if number != signal.SIGSTOP:
            self.process.wait(60)
