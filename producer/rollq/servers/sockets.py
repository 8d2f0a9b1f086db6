"""Calls on plain sockets that keep the interpreter's lock unless they must wait.

Python lets go of the lock around each call on a socket. Among many threads, another one takes it, and the caller must
wait for it and be woken: that costs more than a call that only copies bytes into the kernel or asks it. `ctypes.PyDLL`
calls the C library under the lock. Elsewhere than on Linux, a send may wait although it is told not to, so there these
are Python's own calls. The module knows nothing of what is sent.
"""

import select
import socket
import sys

if sys.platform == "linux":
    import ctypes
    import errno
    import os
    from operator import methodcaller

    class _Descriptor(ctypes.c_int):
        """Asks a socket for its descriptor within the call, so that no other thread closes the socket in between."""

        from_param = methodcaller("fileno")

    _LIBRARY = ctypes.PyDLL(None, use_errno=True)
    _SEND, _RECV = _LIBRARY.send, _LIBRARY.recv
    _SEND.argtypes = _RECV.argtypes = (_Descriptor, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    _SEND.restype = _RECV.restype = ctypes.c_ssize_t
    _LARGE = 1 << 18
    """Bytes that take the kernel so long that other threads should run meanwhile."""
    _BYTE = ctypes.create_string_buffer(1)
    # Numbers, because `|` of two enumerated flags takes as long as the call.
    _SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    _PEEK_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_PEEK)

    def send_all(sock: socket.socket, data: bytes) -> None:
        """Send everything, as `sock.sendall` does. Raises OSError."""
        sent = 0
        if len(data) < _LARGE:
            sent = _SEND(sock, data, len(data), _SEND_FLAGS)
        if sent < 0:
            why = ctypes.get_errno()
            if why not in (errno.EAGAIN, errno.EINTR):
                raise OSError(why, os.strerror(why))
            sent = 0
        if sent < len(data):
            sock.sendall(memoryview(data)[sent:])

    def is_silent(sock: socket.socket) -> bool:
        """Whether nothing has come on the socket, not even its end or an error."""
        found = _RECV(sock, _BYTE, 1, _PEEK_FLAGS)
        return bool(found < 0 and ctypes.get_errno() == errno.EAGAIN)

else:

    def send_all(sock: socket.socket, data: bytes) -> None:
        sock.sendall(data)

    def is_silent(sock: socket.socket) -> bool:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)
