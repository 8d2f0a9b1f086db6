"""Calls that never wait: everything arrives, and errors are those of Python's own calls."""

import socket
import threading
from collections.abc import Iterator

import pytest

from rollq.servers.sockets import Readable, send_all


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.mark.parametrize("length", [0, 1, 5_000_000])
def test_everything_arrives(pair: tuple[socket.socket, socket.socket], length: int) -> None:
    here, there = pair
    data = bytes(range(256)) * (length // 256) + b"\0" * (length % 256)
    thread = threading.Thread(target=lambda: (send_all(here, data), here.shutdown(socket.SHUT_WR)))
    thread.start()
    arrived = b"".join(iter(lambda: there.recv(1 << 20), b""))
    thread.join()
    assert arrived == data


def test_the_other_end_has_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    there.close()
    with pytest.raises(BrokenPipeError):
        send_all(here, b"x")


def test_a_socket_that_is_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    here, _ = pair
    here.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        send_all(here, b"x")


def test_a_limit_of_time_holds(pair: tuple[socket.socket, socket.socket]) -> None:
    here, _ = pair
    here.settimeout(0.05)
    with pytest.raises(TimeoutError):
        send_all(here, b"x" * 5_000_000)


def test_what_is_readable(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    readable = Readable(here)
    assert not readable()
    there.send(b"x")
    assert readable()
    here.recv(1)
    assert not readable()
    there.shutdown(socket.SHUT_WR)
    assert readable()
    here.close()
    assert readable()
