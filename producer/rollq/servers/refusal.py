"""Explains Redis errors and INFO, with a remedy.

It only judges, and asks nothing. Only a damaged key has a remedy that deletes: whatever Redis
refuses for another reason (memory, disk, rights) is whole.
"""

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import redis
from redis.exceptions import NoPermissionError, ReadOnlyError
from redis.sentinel import MasterNotFoundError

from rollq.errors import LedgerError, Unwritable

T = TypeVar("T")

MIB = 2**20
REFUSING = re.compile(
    r"not allowed when used memory"
    r"|(?:^|[-\s])(?:MISCONF|READONLY|NOREPLICAS|MASTERDOWN|UNBLOCKED|BUSY) "
)
"""Errors of a Redis that takes no writes, its own or out of a script."""
WITHOUT_CODE = (redis.OutOfMemoryError, ReadOnlyError)
"""Errors of this kind whose codes redis-py drops from the text."""
DAMAGED = re.compile(r"DAMAGED (\S+) (.*?)(?: script:|$)")
"""The error of a script that cannot use a key."""
MEMORY_REMEDY = (
    "Raise its maxmemory, let consumers acknowledge, or drop old runs with `rollq jobs drop`"
)
REMEDIES = {
    "MISCONF": "Make room on its disk; `rollq doctor` checks it",
    "READONLY": "Give the address of its primary, or of Sentinels",
    "NOREPLICAS": "Start its replicas again",
}
"""Remedies by error code."""
KEY_REMEDY = (
    "Restore the key from a backup, or delete its run with `rollq jobs drop RUN --whole-run "
    "--yes`; docs/ledger.md says which keys may be deleted alone"
)
RIGHTS_REMEDY = (
    "Allow its user the keys rollq* and _kombu.*, all channels, and all commands but the "
    "administrative ones; docs/deploy.md"
)


def guarded(what: str, call: Callable[[], T], remedy: str = KEY_REMEDY) -> T:
    """The call's reply. Raises LedgerError or Unwritable, as `translated` says."""
    try:
        return call()
    except redis.ResponseError as e:
        raise translated(e, what, remedy) from e


def translated(error: Exception, what: str, remedy: str = KEY_REMEDY) -> LedgerError:
    """The ledger's error for a reply of Redis. It says what was tried, and names the damaged key if
    there is one. `remedy` is for a damaged key.
    """
    kind = Unwritable if refuses_writes(error) else LedgerError
    why, then = why_and_remedy(error, remedy)
    return kind(f"{what}: {why.rstrip('.')}. {then}." if then else f"{what}: {why}")


def refuses_writes(error: Exception) -> bool:
    """True if Redis takes no writes at all for now. An error of a single write does not count."""
    if isinstance(error, WITHOUT_CODE):
        return True
    return "DAMAGED" not in str(error) and bool(REFUSING.search(str(error)))


def why_and_remedy(error: Exception, key_remedy: str) -> tuple[str, str]:
    """A script's own complaint, or why Redis takes no writes, without Redis's wrapping; and what to
    do about it.
    """
    text = str(error)
    if isinstance(error, ReadOnlyError):
        return text, REMEDIES["READONLY"]
    damage = DAMAGED.search(text)
    if damage:
        return f"{damage[1]} {damage[2]}", key_remedy
    if "not allowed when used memory" in text:
        return "Redis is out of memory (used memory > 'maxmemory')", MEMORY_REMEDY
    refusal = REFUSING.search(text)
    if refusal:
        text = text[refusal.start() :].lstrip(" -")
        code = text.partition(" ")[0]
        if code == "BUSY":  # Redis's own text tells to stop it without saving
            return "Redis is busy with a long script", "Wait until it has ended"
        return text, REMEDIES.get(code, "")
    if "WRONGTYPE" in text:
        return text, key_remedy
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        return text, RIGHTS_REMEDY
    return text, ""


def no_answer(error: BaseException | None) -> str:
    """The remedy for a Redis that is there and does not answer, or refuses the login; empty where
    none is there.
    """
    if isinstance(error, redis.AuthenticationError):
        return "Correct the user and the password of its address (--redis, ROLLQ_REDIS_URL)"
    if isinstance(error, redis.BusyLoadingError):
        return "It still reads its file: wait until it has"
    if isinstance(error, redis.TimeoutError) and "reading" in str(error):
        return (
            "It is there and does not answer: look whether it is frozen, or busy with one long "
            "command, and at its log. Do not start a second one"
        )
    return ""


def unreached(address: str, error: BaseException) -> str:
    """The error text for an address where Redis was never reached, with the cause and a remedy."""
    if isinstance(error, MasterNotFoundError):
        error = of_sentinels(error)
    return f"no Redis at {address}: {str(error).rstrip('.')}. {_where_to_look(address, error)}"


def of_sentinels(error: MasterNotFoundError) -> redis.ConnectionError:
    """The error without redis-py's clients, which it shows with all their options.
    AuthenticationError if a Sentinel refused the login.
    """
    text = re.sub(r"(?s)<.*?> - (?=[\w:]*Error)", "", str(error))
    if "AuthenticationError" in text:
        return redis.AuthenticationError(
            "a Sentinel refuses sentinel_username or sentinel_password"
        )
    return MasterNotFoundError(text)


def _where_to_look(address: str, error: BaseException) -> str:
    remedy = no_answer(error)
    if remedy:
        return remedy
    if isinstance(error, MasterNotFoundError):
        return (
            "Start the Sentinels, or correct them and their service in the address "
            "(--redis, ROLLQ_REDIS_URL)"
        )
    for cause in _causes(error):
        remedy = _remedy_for_cause(address, cause)
        if remedy:
            return remedy
    has_tls = address.startswith("rediss:")
    if not has_tls and re.search("closed by server|reset by peer", str(error)):
        return "Does it speak TLS there (rediss://, or ssl=true)?"
    return "Start one with `rollq redis`, or give another address (--redis, ROLLQ_REDIS_URL)"


def _remedy_for_cause(address: str, cause: BaseException) -> str:
    if type(cause) is redis.RedisError:
        return (
            "Correct the options of the address (ssl_cert_reqs= takes required, optional and none)"
        )
    if isinstance(cause, FileNotFoundError) and not address.startswith("unix:"):
        return "Correct the files in its options (ssl_ca_certs=, ssl_certfile=, ssl_keyfile=)"
    if isinstance(cause, socket.gaierror):
        return "No such host: correct the address"
    has_tls = address.startswith("rediss:")
    if isinstance(cause, ssl.SSLError) or (has_tls and isinstance(cause, redis.TimeoutError)):
        return (
            "Does it speak TLS there? Is its certificate valid, for this host, and trusted "
            "(ssl_ca_certs=)? Does it want one of yours (ssl_certfile=, ssl_keyfile=)?"
        )
    return ""


def _causes(error: BaseException | None) -> list[BaseException]:
    """The error and what led to it."""
    causes: list[BaseException] = []
    while error and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def why_no_writes(info: Mapping[str, Any]) -> str:
    """The trouble and its remedy in a server's INFO; empty when it takes writes."""
    used, limit = info.get("used_memory"), info.get("maxmemory")
    if used and limit and used >= limit:
        return (
            f"Redis is out of memory ({used / MIB:.1f} of {limit / MIB:.1f} MiB): workers claim "
            f"nothing, and what is played goes on. {MEMORY_REMEDY}"
        )
    wrong = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status")
        if info.get(name, "ok") != "ok"
    ]
    if wrong:
        return (
            f"Redis cannot write to its disk ({', '.join(wrong)}: err), and may refuse writes: "
            "make room there, then look at its log. `rollq doctor` checks it"
        )
    if info.get("role") == "slave":
        return f"this Redis is a replica and takes no writes. {REMEDIES['READONLY']}"
    if info.get("min_slaves_good_slaves") == 0:
        return (
            "this Redis takes no writes without its replicas, and none follows it. "
            f"{REMEDIES['NOREPLICAS']}"
        )
    return ""
