"""Asks Redis for the commands that its user may not send.

The invariant: nothing is done. Redis checks a user's rights when it queues a command of a
transaction, and the transaction is thrown away. So it also works for users who may not read the
list of users.
"""

from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import NoPermissionError

Command = Sequence[str | int]


def refused(client: Any, commands: Sequence[Command]) -> list[str]:
    """The commands that the client's user may not send, each with Redis's reason. Several that are
    refused for their keys have the same reason. Raises CONNECTION_ERRORS.
    """
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        if why := _why(connection, ("MULTI",)):
            return [why]
        reasons = [_why(connection, command) for command in commands]
        _ask(connection, ("DISCARD",))
        return [why for why in reasons if why]
    except BaseException:
        connection.disconnect()  # it may be within a transaction
        raise
    finally:
        pool.release(connection)


def _why(connection: Any, command: Command) -> str:
    """The command and why this user may not send it; empty when it may, or is refused for another
    reason.
    """
    try:
        _ask(connection, command)
    except NoPermissionError as e:
        return f"{' '.join(map(str, command[:2]))}: {e}"
    except redis.ResponseError:
        return ""  # out of memory, read-only: other checks say so
    return ""


def _ask(connection: Any, command: Command) -> Any:
    connection.send_command(*command)
    return connection.read_response()
