"""Addresses of several servers: what they say, what is wrong with them, and what Celery makes of
them.
"""

from pathlib import Path

import pytest
from kombu import Connection
from redis.connection import SSLConnection

from rollq.client.producing.broker import Broker
from rollq.errors import SettingsError
from rollq.job import QUEUE
from rollq.ledger.constants import NEW
from rollq.ledger.replies import JobMessage
from rollq.servers.connection import connect
from rollq.settings import Settings
from rollq.urls import broker_options, check_url, is_http, mask_url, parse_sentinels
from tests.servers import Server

SENTINELS = (
    "sentinel://rollq:p%40ss@h1,h2:26380,[::1]:26381/3?service=ledger&sentinel_password=other"
)


def test_an_address_of_sentinels() -> None:
    found = parse_sentinels(SENTINELS)
    assert found.hosts == (("h1", 26379), ("h2", 26380), ("::1", 26381))
    assert (found.username, found.password, found.database) == ("rollq", "p@ss", 3)
    assert found.sentinel_login == {"password": "other"}
    assert not found.tls


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://h1:26379/0",  # no service
        "sentinel://h1:26379/name?service=x",
        "sentinel://h1:0/0?service=x",
        "sentinel://h1:99999/0?service=x",
        "sentinel://h1:26379,/0?service=x",
        "sentinel:///0?service=x",
        "sentinel://h1/0?service=x&sentinel_pasword=y",
        "sentinel://h1,h2..x/0?service=x",
    ],
)
def test_what_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="expected sentinel://"):
        check_url(url)


@pytest.mark.parametrize("options", ["ssl=on", "ssl=tru", "ssl=", "ssl_ca_certs=ca.pem"])
def test_tls_is_never_off_by_mistake(options: str) -> None:
    with pytest.raises(SettingsError, match="expected ssl=true for TLS"):
        connect(f"sentinel://h1/0?service=x&{options}")


@pytest.mark.parametrize("option", ["virtual_host=x", "socket_timeout=abc", "db=x"])
def test_a_wrong_option_is_named(option: str) -> None:
    with pytest.raises(
        SettingsError,
        match=rf"the option {option.partition('=')[0]} is unknown or has a wrong value",
    ):
        connect(f"redis://127.0.0.1:6379?{option}")


@pytest.mark.parametrize("host", ["redis..svc", ".", 64 * "r", "r\udcff"])
def test_a_host_that_no_socket_can_look_up_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match="expected redis://HOST"):
        connect(f"redis://{host}:6379/0")


def test_no_cause_of_an_error_has_a_part_of_the_password() -> None:
    with pytest.raises(SettingsError) as caught:
        check_url("redis://u:S3CRET/PASS@h:1/0")
    assert (
        "S3CRET" not in str(caught.value)
        and caught.value.__cause__ is None
        and caught.value.__suppress_context__
    )


@pytest.mark.parametrize("password", ["77#rest", "77?rest", "77?a=rest", "77#"])
def test_the_digits_before_a_mark_in_a_password_are_no_port(password: str) -> None:
    for read in (check_url, broker_options):
        with pytest.raises(
            SettingsError, match=r"redis://u:\*\*\*@h/0 \(write # \? / @ of a login as %23"
        ) as caught:
            read(f"redis://u:{password}@h/0")
        assert "77" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "redis://h/0?username=u@h.org&password=x",
        "rediss://h/0?ssl_ca_certs=/a@b/ca.pem",
        "redis://h:1/0#comment",
    ],
)
def test_an_at_in_an_option_is_no_login(address: str) -> None:
    check_url(address)
    broker_options(address)


def test_no_password_is_shown() -> None:
    masked = mask_url(SENTINELS)
    assert (
        masked
        == "sentinel://rollq:***@h1,h2:26380,[::1]:26381/3?service=ledger&sentinel_password=***"
    )
    with pytest.raises(SettingsError) as caught:
        check_url("sentinel://:secret@h1/x?service=y&sentinel_password=hidden")
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/0?passwd=S3CRET",
        "redis://h/0?db=S3CRET",
        "redis://h/0?foo=S3CRET&db=1",
        "redis://u:S3CRET",
        "redis://u:77S3CRET/0",
        "sentinel://u:S3CRET/0?service=x",
        "S3CRET",
    ],
)
def test_a_password_in_a_wrong_place_is_not_shown(url: str) -> None:
    assert "S3CRET" not in mask_url(url) and "***" in mask_url(url)


@pytest.mark.parametrize(
    "text",
    [
        "redis://h:6379/0?db=3&ssl_ca_certs=/ca.pem&socket_timeout=2",
        "sentinel://h1,h2:26380,[::1]:26381/3?service=ledger&ssl=true",
        "http://[::1]:30000",
        "http://gpu-2:30000: no answer within 5 s",
        "localhost",
        "gpu-2:30000",
    ],
)
def test_what_is_no_password_is_shown(text: str) -> None:
    assert mask_url(text) == text


@pytest.mark.parametrize(
    "url",
    [
        "http:// gpu-2:30000",
        " http://gpu-2:30000",
        "http://gpu\t-2:30000",
        "http://\u200bgpu-2:30000",
        "http://gp\u00fc:30000",
        "http://gpu%0a:30000",
        "http://gpu\\2:30000",
        "http://a:1/ http://b:2/",
        "http://key\u200b@gpu-2:30000",
        "http://gpu..2:30000",
        f"http://{64 * 'g'}:30000",
    ],
)
def test_a_host_that_clients_refuse_is_no_address(url: str) -> None:
    assert not is_http(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://gpu_1.:3/v1",
        "HTTPS://me:p%40ss@gpu-1",
        "http://[::1]:3?x=1",
        "http://[fe80::1%25eth0]:3/",
        "http://h:",
    ],
)
def test_addresses_of_http_servers(url: str) -> None:
    assert is_http(url)


def test_what_celery_makes_of_sentinels() -> None:
    address, options = broker_options(SENTINELS)
    assert options["master_name"] == "ledger"
    assert options["sentinel_kwargs"]["password"] == "other"
    with Connection(address, transport_options=options) as connection:
        assert (connection.userid, connection.password, connection.virtual_host) == (
            "rollq",
            "p@ss",
            "3",
        )
        assert connection.alt == [
            f"sentinel://rollq:p%40ss@{host}/3" for host in ("h1:26379", "h2:26380", "[::1]:26381")
        ]


@pytest.mark.parametrize(
    ("url", "translated"),
    [
        ("unix:///a%20b/r.sock", "redis+socket:///a%20b/r.sock?virtual_host=0"),
        (
            "unix://u:p%40@/r.sock?db=3&socket_timeout=2",
            "redis+socket://u:p%40@/r.sock?virtual_host=3",
        ),
        ("unix://u@/r.sock?password=p@", "redis+socket://u:p%40@/r.sock?virtual_host=0"),
        ("redis://:p%40@[::1]:6380/1?db=3", "redis://:p%40@[::1]:6380/3"),
        ("redis://h?username=u&password=p@", "redis://u:p%40@h/"),
        (
            "redis://h/2?protocol=2&client_name=x&socket_keepalive=true&health_check_interval=9",
            "redis://h/2",
        ),
        ("rediss://h/2?ssl_ca_certs=/a%20b&socket_timeout=2", "rediss://h/2?ssl_ca_certs=%2Fa+b"),
    ],
)
def test_celery_gets_database_and_login_where_it_looks_for_them(url: str, translated: str) -> None:
    assert broker_options(url) == (translated, {})
    assert broker_options(translated) == (translated, {})


def test_celery_reaches_the_database_of_the_ledger(tmp_path: Path) -> None:
    server = Server(tmp_path, ["--unixsocket", str(tmp_path / "r.sock")])
    server.client.config_set("requirepass", "p@ss")
    options = "password=p@ss&protocol=2&client_name=x&socket_timeout=2&health_check_interval=9"
    try:
        for database, address in enumerate(
            (server.url.removesuffix("/0"), f"unix://{tmp_path}/r.sock"), 3
        ):
            url = f"{address}?db={database}&{options}"
            broker = Broker(url)
            assert broker.send([JobMessage("r/g/0", QUEUE, NEW)]) == ["r/g/0"], broker.error
            assert broker.backlog() == {QUEUE: 1}
            broker.close()
            with connect(url) as client:
                assert client.keys(f"{QUEUE}*")
    finally:
        server.kill()


def test_an_option_that_nobody_knows_is_named() -> None:
    with pytest.raises(
        SettingsError, match="Celery takes no option sokcet_timeout: remove it"
    ) as caught:
        Settings(broker_url="redis://:secret@h/0?sokcet_timeout=2")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/0",
        "rediss://h/0?ssl_ca_certs=/a b&ssl_check_hostname=false",
        "redis://h/0?credential_provider=a.B",
        "amqp://h?x=1",
        "sentinel://a;sentinel://b",
        "redis://a;redis://b?x=1",
    ],
)
def test_other_brokers_stay_as_they_are(url: str) -> None:
    assert broker_options(url) == (url, {})


def test_celery_has_no_tls_to_sentinels() -> None:
    with pytest.raises(SettingsError, match="no TLS to servers behind Sentinels"):
        broker_options("sentinel://h/0?service=x&ssl=true")


def test_tls_reaches_servers_and_sentinels() -> None:
    with connect(
        "sentinel://h/0?service=x&ssl=true&ssl_ca_certs=/ca&ssl_check_hostname=false"
    ) as client:
        pool = client.connection_pool
        for options in (pool.connection_kwargs, pool.sentinel_manager.sentinel_kwargs):
            assert (options["ssl_ca_certs"], options["ssl_check_hostname"]) == ("/ca", False)
        assert issubclass(pool.connection_class, SSLConnection)
