"""Addresses: checks those of Redis and of HTTP servers, translates those for Celery, masks any.
Opens no connection.

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
CELERYS = r"ssl_\w+|connect_timeout|credential_provider|heartbeat|insist|login_method"
"""The options of one server that kombu takes as they are."""
REDIS_PYS = (
    r"db|username|password|protocol|client_name|lib_\w+|socket_\w+|retry_on_\w+|max_connections|health_check_interval"
    r"|encoding\w*|legacy_responses"
)
"""Options that it does not take. What a server must be told has a place in the address; the rest is
Celery's own choice.
"""
HTTP = re.compile(
    r"https?://([^/?#\\]*@)?(\[[\da-f:.]+(%[\w.~-]+)?\]|[\w.-]+)(:\d*)?([/?#]\S*)?",
    re.ASCII | re.IGNORECASE,
)
SECRET = re.compile(r"(?i)([?&;,][\w-]*(?:password|key|token|secret)=)[^&]*")
"""The value ends at `&` only, because `,`, `;`, `@` and white space may be parts of it."""
SHOWN = re.compile(
    rf"(?:(?!db=|username=|password=)(?:{CELERYS}|{REDIS_PYS}|service|ssl)=|db=\d*$)[^@]*$"
)
"""An option whose value errors show. Any other may be a password under a misspelt name."""
HOSTS = re.compile(r"([\w.-]+|\[[\da-fA-F:.%]+\])?(:\d*)?")
"""A host with its port, or one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The parts of a `sentinel://` address."""

    hosts: tuple[tuple[str, int], ...]
    """Host and port of each Sentinel."""
    username: str | None
    password: str | None
    """Of the Redis servers."""
    database: int
    options: Mapping[str, str]

    @property
    def tls(self) -> bool:
        return self.options.get("ssl", "false").lower() in ("1", "true", "yes")

    @property
    def sentinel_login(self) -> dict[str, str]:
        """User and password of the Sentinels themselves, as far as the address has them."""
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
    """True if `url` can be the address of an HTTP server. urlsplit alone takes hosts that urllib3
    refuses.
    """
    try:
        parts = urlsplit(url)
        unquote(parts.netloc).encode("latin-1")  # as a login is for its header
        return bool(HTTP.fullmatch(url)) and parts.port != 0
    except ValueError:
        return False


def is_sentinel(url: str) -> bool:
    """True if the address names Sentinels."""
    return url.startswith("sentinel://")


def check_url(url: str) -> None:
    """Raises SettingsError when `url` cannot be the address of a Redis."""
    if is_sentinel(url):
        parse_servers(url)
        return
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # which may hold the password, and so is no cause that a traceback shows
        raise SettingsError(
            f"not an address of Redis: {mask_url(url)} (expected redis://HOST:PORT/DATABASE)"
        ) from None
    _check_login(url, parts)
    if parts.scheme not in ONE_SERVER:
        raise SettingsError(
            f"not an address of Redis: {mask_url(url)} (expected redis://, rediss://, unix:// or "
            "sentinel://)"
        )
    if parts.scheme == "unix":
        if not parts.path:
            raise SettingsError(
                f"not an address of Redis: {mask_url(url)} (expected unix:///path/to/socket)"
            )
    elif not parts.hostname or port == 0 or not re.fullmatch(r"/?\d*", parts.path):
        raise SettingsError(
            f"not an address of Redis: {mask_url(url)} (expected redis://HOST:PORT/DATABASE)"
        )


def _check_login(url: str, parts: SplitResult) -> None:
    """Raises SettingsError for `#` or `?` in the login of one server: what is before it would pass
    for host and port, which errors show.
    """
    option = re.compile(f"{CELERYS}|{REDIS_PYS}")
    options = parse_qsl(parts.query, keep_blank_values=True)
    texts = [name if option.fullmatch(name) else name + value for name, value in options]
    if "@" not in parts.netloc and "@" in parts.fragment + "".join(texts):
        raise SettingsError(
            f"not an address of Redis: {mask_url(url)} (write # ? / @ of a login as %23 %3F %2F "
            "%40)"
        )


def parse_servers(url: str) -> Servers:
    """Reads a `sentinel://` address. Raises SettingsError."""
    rest, _, query = url.partition("://")[2].partition("?")
    netloc, _, path = rest.partition("/")
    login, _, hosts = netloc.rpartition("@")
    username, _, password = login.partition(":")
    options = dict(parse_qsl(query, keep_blank_values=True))
    addresses = [_host(text) for text in hosts.split(",")]
    is_wrong = (
        None in addresses
        or not re.fullmatch(r"\d{0,4}", path)
        or not all(map(SENTINEL_OPTION.fullmatch, options))
        or not options.get("service")
    )
    if is_wrong:
        raise SettingsError(
            f"not an address of Redis: {mask_url(url)} (expected "
            "sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/DATABASE?service=NAME)"
        )
    return Servers(
        hosts=tuple(filter(None, addresses)),
        username=unquote(username) or None,
        password=unquote(password) or None,
        database=int(path or 0),
        options=options,
    )


def _host(text: str) -> tuple[str, int] | None:
    """Host and port of `HOST[:PORT]` or `[IPV6][:PORT]`; None for anything else."""
    parts = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@]+)(?::(\d{1,5}))?", text)
    if not parts:
        return None
    port = int(parts[2] or 26379)
    if not 0 < port < 65536:
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
    servers = parse_servers(url)
    if servers.tls:
        raise SettingsError(
            f"Celery has no TLS to servers behind Sentinels ({mask_url(url)}): set "
            "ROLLQ_BROKER_URL to another address"
        )
    login = _login(quote(servers.username or "", safe=""), quote(servers.password or "", safe=""))
    addresses = []
    for host, port in servers.hosts:
        name = f"[{host}]" if ":" in host else host
        addresses.append(f"sentinel://{login}{name}:{port}/{servers.database}")
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
        kept = {name: value for name, value in options.items() if re.fullmatch(CELERYS, name)}
        if kept == options:
            return url
    for name in options.keys() - kept.keys():
        if not re.fullmatch(REDIS_PYS, name):
            raise SettingsError(
                f"not an address of Redis: {mask_url(url)} (Celery takes no option {name}: remove "
                "it)"
            )
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
    place: a name without a password, the value of an unknown option, a port that is no number, a
    lone word.
    """
    if re.fullmatch(r"\w+", url) and url != "localhost":
        return "***"
    address, mark, query = url.partition("?")
    options = [_masked_option(option) for option in query.split("&")]
    masked = address + SECRET.sub(r"\1***", mark + "&".join(options))  # an `@` ends no login there
    # Also where the scheme is missing, or wrong.
    masked = re.sub(r"(?s)^([\w.+-]+://|(?![\w.+-]+://))([^@:]*):.*@", r"\1\2:***@", masked)
    masked = re.sub(r"((?<=//)|^)[^/?#@:]+@", "***@", masked)
    masked = re.sub(r"^([\w.+-]+)://([^/?#@\s:]+):([^/?#@\s]+)", _mask_port, masked)
    return SECRET.sub(r"\1***", masked)


def _masked_option(option: str) -> str:
    name, mark, value = option.partition("=")
    if not mark or SHOWN.match(option):
        return option
    _, at, host = value.rpartition("@")  # the mark was in a login
    return f"{name}=***{at}{host if at else ''}"


def _mask_port(login: re.Match[str]) -> str:
    scheme, host, port = login.groups()
    hosts = f"{host}:{port}".rstrip(",;:.)")
    parts = hosts.split(",") if scheme == "sentinel" else [hosts]
    return login[0] if all(map(HOSTS.fullmatch, parts)) else f"{scheme}://{host}:***"
