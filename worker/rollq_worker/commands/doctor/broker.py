"""What `rollq doctor` says of Celery's broker: whether it can be used, whose Redis it is, and what
its user may do.
"""

from typing import Any

from rollq.client.producing.broker import Broker
from rollq.errors import SettingsError, Unwritable
from rollq.ledger.keys import celery_queue
from rollq.servers import health
from rollq.servers.connection import connect
from rollq.servers.health import Finding, Level
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_worker.commands.doctor.redis_server import rights
from rollq_worker.process import redis_rights
from rollq_worker.process.celery_app import bare_app, check_broker
from rollq_worker.process.redis_rights import Part

NAME = "broker"
ANOTHER = (
    "if that is what you want, give producers the same address (ROLLQ_BROKER_URL, or "
    "--broker), else they send where no"
    " worker takes"
)


def check(settings: Settings) -> list[Finding]:
    """Whether workers can take messages there. Raises SettingsError and RollqError."""
    app = bare_app(settings)
    try:
        check_broker(app)
    except Unwritable as e:
        return [
            Finding(NAME, Level.FAIL, str(e), "do what it says; it is there, so start no other one")
        ]
    broker = Broker(settings.broker_url)
    try:
        waiting = broker.backlog(settings.queues)
    finally:
        broker.close()
    url, queues = mask_url(settings.broker_url), ", ".join(settings.queues)
    # The transport options that hold no password.
    transport = {
        name: app.conf.broker_transport_options.get(name)
        for name in (
            "socket_timeout",
            "socket_connect_timeout",
            "health_check_interval",
            "ack_emulation",
        )
    }
    details = {"waiting": waiting, "transport": transport}
    if waiting is None:
        says = f"{url} takes messages, but does not tell how many wait"
        return [Finding(NAME, Level.WARN, says, "look at the broker's log", details=details)]
    told = (
        f"queue{'s' if settings.queues[1:] else ''} {queues}: {sum(waiting.values())} messages wait"
    )
    try:
        client = connect(settings.broker_url, patience_s=0)
    except SettingsError:
        says = (
            f"{url} takes messages; {told}. Whose Redis it is and what its user may "
            "do is not checked"
        )
        return [
            Finding(
                NAME, Level.WARN, says, "write it as ROLLQ_REDIS_URL is written", details=details
            )
        ]
    try:
        same = _same(client, settings)
        return [
            _place(same, url, told, details),
            *([] if same else _eviction(client)),
            _rights(client, settings),
        ]
    finally:
        client.close()


def _place(same: bool, url: str, told: str, details: dict[str, Any]) -> Finding:
    if same:
        return Finding(NAME, Level.OK, f"the ledger's Redis; {told}", details=details)
    return Finding(
        NAME,
        Level.WARN,
        f"{url} is another Redis than the ledger's; {told}",
        ANOTHER,
        details=details,
    )


def _same(client: Any, settings: Settings) -> bool:
    """Whether broker and ledger are one database of one server, under whatever names."""
    if settings.broker_url == settings.redis_url:
        return True
    ledger = connect(settings.redis_url, patience_s=0)
    try:
        places = [
            (health.server_info(one).get("run_id"), _database(one)) for one in (client, ledger)
        ]
    finally:
        ledger.close()
    return places[0] == places[1] and bool(places[0][0])


def _database(client: Any) -> int:
    return int(client.connection_pool.connection_kwargs.get("db") or 0)


def _eviction(client: Any) -> list[Finding]:
    """Of a broker that is not the ledger's Redis. Messages that it loses are sent again."""
    bad = [
        one
        for one in health.findings(client)
        if one.level is not Level.OK and one.name != "redis persistence"
    ]
    return [
        Finding(f"broker's {one.name}", Level.WARN, one.says, one.remedy, details=one.details)
        for one in bad
    ]


def _rights(client: Any, settings: Settings) -> Finding:
    lacking: dict[Part, list[str]] = {part: [] for part in Part}
    for part in lacking:
        for queue in settings.queues:
            lacking[part] += redis_rights.missing_at_broker(client, part, celery_queue(queue)) or ()
    return rights("broker rights", lacking)
