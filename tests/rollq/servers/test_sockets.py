"""Calls that keep the interpreter's lock: everything arrives, and errors are those of Python's own calls."""

import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rollq.servers.sockets import is_silent, send_all

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as here,
        server.accept()[0] as there,
    ):
        yield here, there


def received(there: socket.socket, length: int) -> bytes:
    """The last bytes that come, once so many have come."""
    tail = b""
    while length > 0:
        piece = there.recv(1 << 20)
        assert piece
        length -= len(piece)
        tail = (tail + piece)[-16:]
    return tail


def fill(sock: socket.socket) -> int:
    """Send until the kernel takes no more. Returns the number of bytes."""
    sent = 0
    sock.setblocking(False)
    try:
        while True:
            sent += sock.send(b"." * (1 << 16))
    except BlockingIOError:
        sock.setblocking(True)
    return sent


def reset(pair: Pair) -> None:
    """The other end goes away with an error."""
    here, there = pair
    there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    there.close()
    select.select([here], [], [], 5.0)


@pytest.mark.parametrize("length", [0, 1, 300, 200_000, 5_000_000])
def test_everything_arrives(pair: Pair, length: int) -> None:
    here, there = pair
    data = b"x" * length + b"0123456789abcdef"
    tails: list[bytes] = []
    thread = threading.Thread(target=lambda: tails.append(received(there, len(data))))
    thread.start()
    send_all(here, data)
    thread.join()
    assert tails == [data[-16:]]


def test_a_send_of_which_nothing_is_taken_at_once(pair: Pair) -> None:
    here, there = pair
    before = fill(here)
    thread = threading.Thread(target=send_all, args=(here, b"0123456789abcdef"))
    thread.start()
    assert received(there, before + 16) == b"0123456789abcdef"
    thread.join()


def test_a_limit_of_time_holds(pair: Pair) -> None:
    here, _ = pair
    fill(here)
    here.settimeout(0.05)
    with pytest.raises(TimeoutError):
        send_all(here, b"x")


def test_errors_are_those_of_the_socket(pair: Pair) -> None:
    here, _ = pair
    reset(pair)
    with pytest.raises(ConnectionResetError, match="reset by peer"):
        send_all(here, b"x")
    with pytest.raises(BrokenPipeError, match="Broken pipe"):
        send_all(here, b"x")
    here.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        send_all(here, b"x")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere these are Python's own calls")
def test_no_other_thread_runs_meanwhile(pair: Pair) -> None:
    here, there = pair
    turns, moved, over = 0, 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not over.is_set():
            time.sleep(0)
            turns += 1

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    try:
        thread.start()
        for _ in range(300):
            before = turns
            is_silent(here)
            send_all(here, b"x" * 250_000)
            moved += turns - before
            received(there, 250_000)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()
    assert moved == 0 and turns > 0


def test_what_is_silent(pair: Pair) -> None:
    here, there = pair
    assert is_silent(here)
    there.send(b"x")
    select.select([here], [], [], 5.0)
    assert not is_silent(here)
    assert here.recv(2) == b"x"
    assert is_silent(here)
    there.shutdown(socket.SHUT_WR)
    select.select([here], [], [], 5.0)
    assert not is_silent(here)


def test_an_error_is_no_silence(pair: Pair) -> None:
    reset(pair)
    assert not is_silent(pair[0])
