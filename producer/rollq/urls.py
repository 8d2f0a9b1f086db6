"""Checks addresses of Redis and HTTP servers, translates them for Celery, and masks their
passwords. Opens no connection.

redis://, rediss://, unix://                              one server, as redis-py reads them
sentinel://[USER:PASSWORD@]HOST:PORT,.../DATABASE?service=NAME[&sentinel_password=...][&ssl=true&ssl_ca_certs=...]
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from rollq.errors import SettingsError

ONE_SERVER = ("redis", "rediss", "unix")
SENTINEL_OPTION = re.compile(r"service|sentinel_username|sentinel_password|ssl|ssl_\w+")
"""An option of a `sentinel://` address. Those that begin with `ssl_` are redis-py's."""
KOMBU_OPTIONS = r"ssl_\w+|connect_timeout|credential_provider|heartbeat|insist|login_method"
"""The options of one server that kombu takes as they are."""
REDIS_PY_OPTIONS = (
    r"db|username|password|protocol|client_name|lib_\w+|socket_\w+|retry_on_\w+|max_connections|health_check_interval"
    r"|encoding\w*|legacy_responses"
)
"""Options of redis-py that kombu does not take. Login and database move into the address; the
others are dropped, because Celery has its own.
"""
SSL_VALUES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
"""Values of the option `ssl` of a `sentinel://` address."""
SENTINEL_PORT = 26379
HTTP_URL = re.compile(
    r"https?://([^/?#\\]*@)?(\[[\da-f:.]+(%[\w.~-]+)?\]|[\w.-]+)(:\d*)?([/?#]\S*)?",
    re.ASCII | re.IGNORECASE,
)
SECRET = re.compile(r"(?i)([?&;,][\w-]*(?:password|key|token|secret)=)[^&]*")
"""The value ends at `&` only, because `,`, `;`, `@` and white space may be parts of it."""
SHOWN_OPTION = re.compile(
    rf"(?:(?!db=|username=|password=)(?:{KOMBU_OPTIONS}|{REDIS_PY_OPTIONS}|service|ssl)="
    r"|db=\d*$)[^@]*$"
)
"""An option whose value errors show. Any other may be a password under a misspelt name."""
HOST_AND_PORT = re.compile(r"([\w.-]+|\[[\da-fA-F:.%]+\])?(:\d*)?")
"""A host with its port, or one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelAddress:
    """The parts of a `sentinel://` address."""

    hosts: tuple[tuple[str, int], ...]
    """Host and port of each Sentinel."""
    username: str | None
    password: str | None
    """Password of the Redis servers."""
    database: int
    options: Mapping[str, str]

    @property
    def tls(self) -> bool:
        return SSL_VALUES[self.options.get("ssl", "false").lower()]

    @property
    def sentinel_login(self) -> dict[str, str]:
        """Login of the Sentinels, by redis-py's names. Holds only what the address gives."""
        names = {"sentinel_username": "username", "sentinel_password": "password"}
        return {
            name: self.options[option] for option, name in names.items() if option in self.options
        }

    @property
    def tls_options(self) -> str:
        """The options for redis-py, as a query."""
        return "&".join(
            f"{name}={quote(value)}"
            for name, value in self.options.items()
            if name.startswith("ssl_")
        )


def is_http(url: str) -> bool:
    """True if `url` can be the address of an HTTP server. Stricter than urlsplit, which accepts
    hosts that urllib3 refuses.
    """
    try:
        parts = urlsplit(url)
        unquote(parts.netloc).encode("latin-1")  # requests encodes a login so
        is_url = HTTP_URL.fullmatch(url) and _is_host(parts.hostname)
        return bool(is_url) and parts.port != 0
    except ValueError:
        return False


def _is_host(name: str | None) -> bool:
    """True for a name that sockets can look up: no part of it is empty or longer than 63."""
    try:
        return bool((name or "").encode("idna"))
    except UnicodeError:
        return False


def in_address(host: str) -> str:
    """The host as an address has it: one of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def is_sentinel(url: str) -> bool:
    """True if the address names Sentinels."""
    return url.startswith("sentinel://")


def check_url(url: str) -> None:
    """Raises SettingsError when `url` cannot be the address of a Redis."""
    if is_sentinel(url):
        parse_sentinels(url)
        return
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may hold the password, so it must not show as a cause
        raise _not_redis(url, "expected redis://HOST:PORT/DATABASE") from None
    _check_login(url, parts)
    if parts.scheme not in ONE_SERVER:
        raise _not_redis(url, "expected redis://, rediss://, unix:// or sentinel://")
    if parts.scheme == "unix":
        if not parts.path:
            raise _not_redis(url, "expected unix:///path/to/socket")
    elif not _is_host(parts.hostname) or port == 0 or not re.fullmatch(r"/?\d*", parts.path):
        raise _not_redis(url, "expected redis://HOST:PORT/DATABASE")


def _not_redis(url: str, reason: str) -> SettingsError:
    return SettingsError(f"not an address of Redis: {mask_url(url)} ({reason})")


def _check_login(url: str, parts: SplitResult) -> None:
    """Raises SettingsError for an unescaped `#` or `?` in a login. It ends the address early, so
    the text before it would pass for host and port, which errors show.
    """
    if "@" in parts.netloc:
        return
    option = re.compile(f"{KOMBU_OPTIONS}|{REDIS_PY_OPTIONS}")
    behind_host = parts.fragment
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        behind_host += name if option.fullmatch(name) else name + value
    if "@" in behind_host:
        raise _not_redis(url, "write # ? / @ of a login as %23 %3F %2F %40")


def parse_sentinels(url: str) -> SentinelAddress:
    """Reads a `sentinel://` address. Raises SettingsError."""
    rest, _, query = url.partition("://")[2].partition("?")
    netloc, _, path = rest.partition("/")
    login, _, hosts = netloc.rpartition("@")
    username, _, password = login.partition(":")
    options = dict(parse_qsl(query, keep_blank_values=True))
    addresses = [_parse_host(text) for text in hosts.split(",")]
    is_wrong = (
        None in addresses
        or not re.fullmatch(r"\d{0,4}", path)
        or not all(map(SENTINEL_OPTION.fullmatch, options))
        or not options.get("service")
    )
    if is_wrong:
        raise _not_redis(
            url,
            "expected sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/DATABASE?service=NAME",
        )
    has_tls_options = any(name.startswith("ssl") for name in options)
    if has_tls_options and options.get("ssl", "").lower() not in SSL_VALUES:
        raise _not_redis(url, "expected ssl=true for TLS, ssl=false for none")
    return SentinelAddress(
        hosts=tuple(filter(None, addresses)),
        username=unquote(username) or None,
        password=unquote(password) or None,
        database=int(path or 0),
        options=options,
    )


def _parse_host(text: str) -> tuple[str, int] | None:
    """Host and port of `HOST[:PORT]` or `[IPV6][:PORT]`; None for anything else."""
    parts = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@]+)(?::(\d{1,5}))?", text)
    if not parts:
        return None
    port = int(parts[2] or SENTINEL_PORT)
    if not _is_host(parts[1]) or not 0 < port < 65536:
        return None
    return parts[1].strip("[]"), port


def broker_options(url: str) -> tuple[str, dict[str, Any]]:
    """The address as Celery's Redis transport wants it, and its transport options. Other brokers
    stay as they are.

    Raises SettingsError for an unknown option.
    """
    if ";" in url:  # it is written for Celery already
        return url, {}
    if url.partition("://")[0] in ONE_SERVER:
        return _for_kombu(url), {}
    if not is_sentinel(url):
        return url, {}
    servers = parse_sentinels(url)
    if servers.tls:
        raise SettingsError(
            f"Celery has no TLS to servers behind Sentinels ({mask_url(url)}): set "
            "ROLLQ_BROKER_URL to another address"
        )
    login = _login(quote(servers.username or "", safe=""), quote(servers.password or "", safe=""))
    addresses = []
    for host, port in servers.hosts:
        addresses.append(f"sentinel://{login}{in_address(host)}:{port}/{servers.database}")
    # Without redis-py's retries, so that a Sentinel that is away does not hold up the question to
    # the next one.
    brief: dict[str, Any] = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": None}
    return ";".join(addresses), {
        "master_name": servers.options["service"],
        "sentinel_kwargs": brief | servers.sentinel_login,
    }


def _login(user: str, password: str) -> str:
    return f"{user}:{password}@" if user or password else ""


def _for_kombu(url: str) -> str:
    """The address of one server. Database and login stand where kombu looks for them. Raises
    SettingsError.
    """
    parts = urlsplit(url)
    _check_login(url, parts)
    options = dict(parse_qsl(parts.query))
    kept = {}
    if parts.scheme != "unix":
        kept = {name: value for name, value in options.items() if re.fullmatch(KOMBU_OPTIONS, name)}
        if kept == options:
            return url
    for name in sorted(options.keys() - kept.keys()):
        if not re.fullmatch(REDIS_PY_OPTIONS, name):
            raise _not_redis(url, f"Celery takes no option {name}: remove it")
    user = parts.username or quote(options.get("username", ""), safe="")
    password = parts.password or quote(options.get("password", ""), safe="")
    login = _login(user, password)
    if parts.scheme == "unix":
        return f"redis+socket://{login}{parts.path}?virtual_host={options.get('db', 0)}"
    host = parts.netloc.rpartition("@")[2]
    database = options.get("db", parts.path.strip("/"))
    address = f"{parts.scheme}://{login}{host}/{database}"
    return f"{address}?{urlencode(kept)}" if kept else address


def mask_url(url: str) -> str:
    """The address with every password replaced by `***`, and with it what may be one in a wrong
    place: a name without a password, the value of an unknown option, a port that is not a number, a
    lone word.
    """
    if re.fullmatch(r"\w+", url) and url != "localhost":
        return "***"
    address, mark, query = url.partition("?")
    options = [_masked_option(option) for option in query.split("&")]
    masked = address + SECRET.sub(r"\1***", mark + "&".join(options))  # an `@` ends no login there
    # USER:PASSWORD@, also where the scheme is missing or wrong
    masked = re.sub(r"(?s)^([\w.+-]+://|(?![\w.+-]+://))([^@:]*):.*@", r"\1\2:***@", masked)
    # NAME@, which may be a password without a name
    masked = re.sub(r"((?<=//)|^)[^/?#@:]+@", "***@", masked)
    # HOST:WORD, where the word is not a port
    masked = re.sub(r"^([\w.+-]+)://([^/?#@\s:]+):([^/?#@\s]+)", _mask_port, masked)
    # options of an address in another address, whose `?` is not the first
    return SECRET.sub(r"\1***", masked)


def _masked_option(option: str) -> str:
    name, mark, value = option.partition("=")
    if not mark or SHOWN_OPTION.match(option):
        return option
    # If the question mark was part of a password, the host follows the @.
    _, at, host = value.rpartition("@")
    return f"{name}=***{at}{host if at else ''}"


def _mask_port(login: re.Match[str]) -> str:
    scheme, host, port = login.groups()
    hosts = f"{host}:{port}".rstrip(",;:.)")
    parts = hosts.split(",") if scheme == "sentinel" else [hosts]
    return login[0] if all(map(HOST_AND_PORT.fullmatch, parts)) else f"{scheme}://{host}:***"
