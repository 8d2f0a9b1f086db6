"""Calls on plain sockets that never wait, and so keep the interpreter's lock.

Python lets go of the lock around each call on a socket. Among many threads, another one takes it, and the caller must
wait for it and be woken: that costs more than a call that only copies bytes into the kernel. `ctypes.PyDLL` calls the
C library under the lock. It knows nothing of what is sent.
"""

import ctypes
import socket

_LIBRARY = ctypes.PyDLL(None)
_SEND = _LIBRARY.send
_SEND.argtypes, _SEND.restype = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_ssize_t
_AT_ONCE = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
_POLL = _LIBRARY.poll


class _PollFd(ctypes.Structure):
    """struct pollfd of poll(2)."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


def send_all(sock: socket.socket, data: bytes) -> None:
    """What `sock.sendall` does. Only what the kernel does not take at once is waited for, without the lock."""
    sent = _SEND(sock.fileno(), data, len(data), _AT_ONCE)
    if sent < len(data):  # also after an error, which the socket raises when it is asked again
        sock.sendall(memoryview(data)[max(sent, 0) :])


class Readable:
    """Whether there is something to read on a socket, its end included. A socket that was closed here is readable."""

    def __init__(self, sock: socket.socket) -> None:
        self._asked = ctypes.pointer(_PollFd(sock.fileno(), 1))  # POLLIN

    def __call__(self) -> bool:
        return bool(_POLL(self._asked, 1, 0))
