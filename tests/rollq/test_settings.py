"""Addresses from the environment, and the connection they lead to."""

import os
from pathlib import Path

import pytest

from rollq.errors import SettingsError
from rollq.servers.connection import connect
from rollq.settings import Endpoint, Settings
from rollq.urls import mask_url


def test_defaults() -> None:
    found = Settings.from_env()
    assert found == Settings()
    assert (found.redis_url, found.broker_url) == ("redis://127.0.0.1:6379/0",) * 2
    assert (found.engine_urls, found.concurrency) == (("http://127.0.0.1:30000",), 64)
    assert (found.tokenizer, found.template) == (None, None)


def test_everything_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "REDIS_URL": "rediss://u:p@h:1/2",
        "ENGINE_URL": "https://e:3/",
        "TOKENIZER": "/models/q",
        "TEMPLATE": "qwen3",
        "CONCURRENCY": "7",
        "USER_ENDPOINTS": "local=http://u:8000/v1/ ; far=https://x/v1,key_file=/run/key;",
        "MODEL_ENGINES": "large=http://a:1/,file:/b; small=redis:fleet;",
        "ALIVE_FILE": "/tmp/alive",
    }.items():
        monkeypatch.setenv(f"ROLLQ_{name}", value)
    found = Settings.from_env()
    assert found.broker_url == found.redis_url == "rediss://u:p@h:1/2"
    assert (found.engine_urls, found.concurrency) == (("https://e:3",), 7)
    assert (found.tokenizer, found.template) == ("/models/q", "qwen3")
    assert found.user_endpoints == {
        "local": Endpoint("http://u:8000/v1"),
        "far": Endpoint("https://x/v1", Path("/run/key")),
    }
    assert found.model_engines == {"large": ("http://a:1", "file:/b"), "small": ("redis:fleet",)}
    assert found.alive_file == Path("/tmp/alive")
    monkeypatch.setenv("ROLLQ_BROKER_URL", "amqp://b")
    assert Settings.from_env(redis_url="redis://other").broker_url == "amqp://b"
    assert Settings.from_env(redis_url="redis://other").redis_url == "redis://other"


def test_addresses_in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address, broker = tmp_path / "ledger", tmp_path / "broker"
    address.write_text("redis://u:p@h:1/2\n")
    monkeypatch.setenv("ROLLQ_REDIS_URL_FILE", str(address))
    assert Settings.from_env().redis_url == Settings.from_env().broker_url == "redis://u:p@h:1/2"
    broker.write_text("\ufeffredis://b\r\n", "utf-8")
    monkeypatch.setenv("ROLLQ_BROKER_URL_FILE", str(broker))
    assert Settings.from_env().broker_url == "redis://b"
    monkeypatch.setenv("ROLLQ_REDIS_URL", "redis://said")
    assert Settings.from_env().redis_url == "redis://said"
    assert Settings.from_env(redis_url="redis://given").redis_url == "redis://given"


@pytest.mark.parametrize(
    "content", [None, b"", b" \n", b"redis://:SECRET@a\nredis://b", b"\xff\xfe"]
)
def test_a_file_without_an_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "address"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("ROLLQ_REDIS_URL_FILE", str(path))
    with pytest.raises(SettingsError, match=f"ROLLQ_REDIS_URL_FILE: {path}") as raised:
        Settings.from_env()
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDIS_URL", "localhost:6379"),
        ("REDIS_URL", "redis://h:99999/0"),
        ("BROKER_URL", "somewhere"),
        ("ENGINE_URL", "h:30000"),
        ("ENGINE_URL", "http://h:port"),
        ("ENGINE_URL", "http:// gpu-2:30000"),
        ("ENGINE_URL", "http://h:1,http://h:1/"),
        ("ENGINE_URL", "http://h:1,h:2"),
        ("ENGINE_URL", "file:"),
        ("ENGINE_URL", "redis://:SECRET@h:6379"),
        ("ENGINE_URL", ","),
        ("CONCURRENCY", "0"),
        ("CONCURRENCY", "1.5"),
        ("PROCESSES", "0"),
        ("PROCESSES", "all"),
        ("QUEUES", "a b"),
        ("QUEUES", ","),
        ("USER_ENDPOINTS", "http://h/v1"),
        ("USER_ENDPOINTS", "abc=,key_file=/run/key"),
        ("USER_ENDPOINTS", "a=ftp://h/v1"),
        ("USER_ENDPOINTS", "a=http://h/v1;a=http://h/v1"),
        ("USER_ENDPOINTS", "a b=http://h/v1"),
        ("USER_ENDPOINTS", "a=http://h/v1,key=SECRET"),
        ("USER_ENDPOINTS", "a=http://h/v1,sk-SECRET"),
        ("USER_ENDPOINTS", "a=http://h/v1;key=sk-SECRET"),
        ("USER_ENDPOINTS", "http://h/v1,api-key=sk-SECRET"),
        ("USER_ENDPOINTS", "http://h/v1,sk-SECRET"),
        ("USER_ENDPOINTS", "a=http://h/v1,key_file="),
        ("BROKER_URL", "amqp://me:SECRET]@h:5672//"),
        ("BROKER_URL", "amqp://me:SECRET\u2100@h:5672//"),
        ("MODEL_ENGINES", "http://h:1"),
        ("MODEL_ENGINES", "a="),
        ("MODEL_ENGINES", "a b=http://h:1"),
        ("MODEL_ENGINES", "a=http://h:1;a=http://h:2"),
        ("MODEL_ENGINES", "a=redis://:SECRET@h:6379"),
    ],
)
def test_what_cannot_be_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ROLLQ_{name}", value)
    with pytest.raises(SettingsError) as caught:
        Settings.from_env()
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "most"), [("100000 100000", 1), ("50000 100000", 1), ("max 1", 0)]
)
def test_as_many_processes_as_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, most: int
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(f"{limit}\n")
    monkeypatch.setattr("rollq.settings.CPU_LIMIT", file)
    monkeypatch.setenv("ROLLQ_PROCESSES", "auto")
    assert Settings.from_env().processes == (most or len(os.sched_getaffinity(0)))


def test_several_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "ROLLQ_ENGINE_URL", "http://a:1/, http://b:2 ,file:/etc/engines,redis:pool.1"
    )
    assert Settings.from_env().engine_urls == (
        "http://a:1",
        "http://b:2",
        "file:/etc/engines",
        "redis:pool.1",
    )
    monkeypatch.setenv("ROLLQ_ENGINE_URL", "http://a:1,http://a:1")
    with pytest.raises(SettingsError, match="http://a:1 is there twice"):
        Settings.from_env()


def test_what_would_be_right_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLQ_USER_ENDPOINTS", "a=http://h/v1;abc")
    with pytest.raises(SettingsError, match=r"entry 2 is not name=url\[,key_file=path\]"):
        Settings.from_env()
    monkeypatch.setenv("ROLLQ_USER_ENDPOINTS", "")
    monkeypatch.setenv("ROLLQ_CONCURRENCY", "9999999999")
    with pytest.raises(SettingsError, match="at least 1 and at most 999999999, not"):
        Settings.from_env()


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://user:SECRET@h:1/0", "redis://user:***@h:1/0"),
        ("redis://:SECRET@h", "redis://:***@h"),
        ("http://SECRET@h:1", "http://***@h:1"),
        ("redis://:SE@CR/ET@h", "redis://:***@h"),
        ("redis://h/0?password=SECRET&db=1", "redis://h/0?password=***&db=1"),
        ("redis://h:1/0?password=pw@SECRET&db=1", "redis://h:1/0?password=***&db=1"),
        ("redis://h/0?password=pw,SECRET", "redis://h/0?password=***"),
        ("redis://h/0?db=1&sentinel_password=pw;SECRET", "redis://h/0?db=1&sentinel_password=***"),
        ("http://h/v1?x-api-key=SECRET", "http://h/v1?x-api-key=***"),
        ("redis//u:SECRET@h:1", "redis//u:***@h:1"),
        ("redis//SECRET@h:1", "redis//***@h:1"),
        ("redis:///u:SECRET@h", "redis:///u:***@h"),
        ("sqla+postgresql://u:SECRET@h", "sqla+postgresql://u:***@h"),
        ("https://h/@org/mcp", "https://h/@org/mcp"),
        ("http://h:30000", "http://h:30000"),
        ("user:SECRET@h:30000", "user:***@h:30000"),
        ("SECRET@h:30000", "***@h:30000"),
    ],
)
def test_no_password_is_shown(url: str, masked: str) -> None:
    assert mask_url(url) == masked
    with pytest.raises(SettingsError) as caught:
        connect(url.replace("redis", "nonsense").replace("http", "nonsense"))
    assert "SECRET" not in str(caught.value)


def test_a_connection_waits_rather_than_fails(redis_url: str) -> None:
    client = connect(redis_url, max_connections=7)
    assert client.ping()
    kwargs = client.connection_pool.connection_kwargs
    assert (
        kwargs["socket_timeout"],
        kwargs["socket_connect_timeout"],
        kwargs["retry"].get_retries(),
    ) == (5, 3, 0)
    assert client.connection_pool.max_connections == 7
    client.close()
    with pytest.raises(SettingsError, match="bytes"):
        connect(redis_url + "?decode_responses=true")
