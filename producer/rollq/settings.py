"""Addresses and limits of this machine, from `ROLLQ_*`. Everything that shapes a rollout travels in
the job instead.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from rollq.errors import SettingsError
from rollq.job import NAME, QUEUE
from rollq.numbers import whole_number
from rollq.urls import broker_options, check_url, is_http, mask_url

REDIS_URL = "redis://127.0.0.1:6379/0"
ENGINE_URL = "http://127.0.0.1:30000"
IN_FILE = "_FILE"
"""ROLLQ_REDIS_URL_FILE and ROLLQ_BROKER_URL_FILE name a file with the address, so that no
environment shows it.
"""
MOST_SLOTS = 999_999_999
MOST_PROCESSES = 1024
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
FILE, REDIS = "file:", "redis:"
"""Prefixes of an engine address that names a list of addresses."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server that plays users; jobs know it by name only."""

    url: str
    """Address of the server, up to and including `/v1`."""
    key_file: Path | None = None
    """File with the API key. It is read when it is used, and its content is shown nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a process on this machine. Raises SettingsError for impossible values."""

    redis_url: str = REDIS_URL
    """ROLLQ_REDIS_URL: the ledger. The forms of an address: urls.py."""
    broker_url: str = REDIS_URL
    """ROLLQ_BROKER_URL: Celery's broker. Default: the ledger's Redis."""
    engine_urls: tuple[str, ...] = (ENGINE_URL,)
    """ROLLQ_ENGINE_URL: SGLang servers or routers, with commas between them. `file:PATH` and
    `redis:NAME` are lists of engines that may change (`engine_address`).
    """
    tokenizer: str | None = None
    """ROLLQ_TOKENIZER: a directory or a hub name. None for the small one that rollq ships."""
    template: str | None = None
    """ROLLQ_TEMPLATE: the name of a training template, or a file with a chat template. None for the
    tokenizer's own.
    """
    concurrency: int = 64
    """ROLLQ_CONCURRENCY: episodes at once in one worker process."""
    processes: int = 1
    """ROLLQ_PROCESSES: processes of a worker. `auto`: as many as there are cores."""
    user_endpoints: Mapping[str, Endpoint] = field(default_factory=lambda: MappingProxyType({}))
    """ROLLQ_USER_ENDPOINTS: `name=url[,key_file=path];...`."""
    model_engines: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """ROLLQ_MODEL_ENGINES: `name=url[,url...];...`, engines of other models than the policy, which
    jobs know by name. Addresses are those of `engine_urls`.
    """
    queues: tuple[str, ...] = (QUEUE,)
    """ROLLQ_QUEUES: the queues (`Job.queue`) that a worker takes jobs from, as `name,name,...`."""
    alive_file: Path | None = None
    """ROLLQ_ALIVE_FILE: a worker touches it every second or so while it is healthy (for health
    checks).
    """
    isolate: tuple[str, ...] = ()
    """ROLLQ_ISOLATE: environments, as `name,name,...` or `tau2:*`, whose episodes get a process of
    their own each.
    """

    def __post_init__(self) -> None:
        check_url(self.redis_url)
        if not _scheme(self.broker_url):
            raise SettingsError(
                f"ROLLQ_BROKER_URL: not the address of a broker: {mask_url(self.broker_url)}"
            )
        broker_options(self.broker_url)
        object.__setattr__(self, "engine_urls", tuple(map(engine_address, self.engine_urls)))
        for url in self.engine_urls:
            if self.engine_urls.count(url) > 1:
                raise SettingsError(
                    f"ROLLQ_ENGINE_URL, or --engine: {mask_url(url)} is there twice"
                )
        if not self.engine_urls:
            raise SettingsError("ROLLQ_ENGINE_URL: no engine is named")
        whole_number("ROLLQ_CONCURRENCY", self.concurrency, 1, MOST_SLOTS, SettingsError)
        whole_number("ROLLQ_PROCESSES", self.processes, 1, MOST_PROCESSES, SettingsError)
        are_distinct = len({*self.queues}) == len(self.queues) > 0
        if not are_distinct or not all(map(NAME.fullmatch, self.queues)):
            raise SettingsError(
                f"ROLLQ_QUEUES must be names of queues, each once, not {','.join(self.queues)!r}"
            )

    @classmethod
    def from_env(cls, redis_url: str | None = None, broker_url: str | None = None) -> "Settings":
        """Settings from the environment variables; the arguments take the place of ROLLQ_REDIS_URL
        and ROLLQ_BROKER_URL. Raises SettingsError.
        """
        env = {name: value for name, value in os.environ.items() if value.strip()}
        redis_url = redis_url or _address(env, "ROLLQ_REDIS_URL") or REDIS_URL
        return cls(
            redis_url=redis_url,
            broker_url=broker_url or _address(env, "ROLLQ_BROKER_URL") or redis_url,
            engine_urls=_names(env.get("ROLLQ_ENGINE_URL", ENGINE_URL)),
            tokenizer=env.get("ROLLQ_TOKENIZER"),
            template=env.get("ROLLQ_TEMPLATE"),
            concurrency=_count("ROLLQ_CONCURRENCY", env.get("ROLLQ_CONCURRENCY", "64"), MOST_SLOTS),
            processes=processes(env.get("ROLLQ_PROCESSES", "1")),
            user_endpoints=_endpoints(env.get("ROLLQ_USER_ENDPOINTS", "")),
            model_engines=_model_engines(env.get("ROLLQ_MODEL_ENGINES", "")),
            alive_file=Path(env["ROLLQ_ALIVE_FILE"]) if "ROLLQ_ALIVE_FILE" in env else None,
            queues=_names(env.get("ROLLQ_QUEUES", QUEUE)),
            isolate=_names(env.get("ROLLQ_ISOLATE", "")),
        )


def engine_address(text: str, where: str = "ROLLQ_ENGINE_URL") -> str:
    """An engine's address, without a slash at its end; or `file:PATH`, a file with an address in
    each line; or `redis:NAME`, a set of addresses in the ledger's Redis (`rollq engines`). Raises
    SettingsError, which names `where` the text is.
    """
    if text.startswith(FILE) and text != FILE:
        return text
    if text.startswith(REDIS) and NAME.fullmatch(text.removeprefix(REDIS)):
        return text
    if not is_http(text):
        raise SettingsError(
            f"{where}: not an address like http://HOST:PORT, file:PATH or redis:NAME: "
            f"{mask_url(text)}"
        )
    return text.rstrip("/")


def _scheme(url: str) -> str:
    """The scheme of an address; empty for a text that is none."""
    try:
        return urlsplit(url).scheme
    except ValueError:  # its text may hold the password
        return ""


def _address(env: Mapping[str, str], name: str) -> str | None:
    """The value of a variable, or the content of the file that its twin, `..._FILE`, names."""
    path = env.get(name + IN_FILE)
    if path is None or name in env:
        return env.get(name)
    try:
        text = Path(path).read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise SettingsError(
            f"{name}{IN_FILE}: {path} cannot be read: {getattr(e, 'strerror', None) or e}"
        ) from e
    if not text or "\n" in text:
        raise SettingsError(f"{name}{IN_FILE}: {path} must hold one address and nothing else")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def processes(text: str) -> int:
    """A number of processes; `auto` is the number of cores that this one may use. Raises
    SettingsError.
    """
    if text == "auto":
        return min(_cores(), MOST_PROCESSES)
    return _count("ROLLQ_PROCESSES, unless it is auto,", text, MOST_PROCESSES)


def _cores() -> int:
    """Number of cores, at least 1. A container's limit counts, where it is one of cgroups v2."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # "max": no limit
        quota, period = CPU_LIMIT.read_text().split()
        cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def _count(name: str, text: str, at_most: int) -> int:
    is_short = len(text) < 20  # Python refuses to read thousands of digits
    value = int(text) if is_short and text.strip().isdecimal() else text
    return whole_number(name, value, 1, at_most, SettingsError)


def _model_engines(text: str) -> Mapping[str, tuple[str, ...]]:
    """Reads `name=url[,url...];...`. Errors show no address, because it may have a login."""
    models: dict[str, tuple[str, ...]] = {}
    entries = filter(None, (part.strip() for part in text.split(";")))
    for number, entry in enumerate(entries, 1):
        name, _, urls = entry.partition("=")
        name = name.strip()
        addresses = [
            engine_address(url, f"ROLLQ_MODEL_ENGINES: entry {number}") for url in _names(urls)
        ]
        if not NAME.fullmatch(name) or name in models or not addresses:
            raise SettingsError(
                f"ROLLQ_MODEL_ENGINES: entry {number} is not name=url[,url...] with a name of its "
                "own"
            )
        models[name] = tuple(addresses)
    return MappingProxyType(models)


def _endpoints(text: str) -> Mapping[str, Endpoint]:
    """Reads `name=url[,key_file=path];...`. An API key itself has no place here, because too many
    can read an environment. Errors show no entry, because one may be there all the same.
    """
    endpoints: dict[str, Endpoint] = {}
    entries = filter(None, (part.strip() for part in text.split(";")))
    for number, entry in enumerate(entries, 1):
        address, *options = entry.split(",")
        name, _, url = (part.strip() for part in address.partition("="))
        if not re.fullmatch(NAME, name) or name in endpoints or not is_http(url):
            raise SettingsError(
                f"ROLLQ_USER_ENDPOINTS: entry {number} is not name=url[,key_file=path] with a name "
                "of its own and a url like http://HOST:PORT/v1"
            )
        key_file = None
        for option in options:
            key, _, value = (part.strip() for part in option.partition("="))
            if key != "key_file" or not value:
                raise SettingsError(
                    f"ROLLQ_USER_ENDPOINTS: {name} takes key_file=PATH and nothing else"
                )
            key_file = Path(value)
        endpoints[name] = Endpoint(url.rstrip("/"), key_file)
    return MappingProxyType(endpoints)
