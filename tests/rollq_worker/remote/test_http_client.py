"""One request over HTTP: a response of bounded size, or an exception that says what became of it
and shows no key.
"""

import traceback
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollq_worker.remote.http_client import ConnectFailed, HttpClient, NoResponse, ResponseTimeout
from tests.conftest import free_port
from tests.rollq_worker.engine.engine_servers import scripted_engine

KEY = "Bearer sk-very-secret-1234"


@pytest.fixture
def client() -> Iterator[HttpClient]:
    client = HttpClient(max_bytes=1000, connect_timeout_s=3.0)
    yield client
    client.close()


def test_a_body_is_read_up_to_the_limit(client: HttpClient) -> None:
    with scripted_engine(small=(200, b"[1]"), large=(200, b"1" * 10_000_000)) as server:
        assert client.request("GET", server.url + "/small", timeout_s=60.0).json() == [1]
        large = client.request("GET", server.url + "/large", timeout_s=60.0)
        assert 1000 < len(large.body) < 1_000_000
        assert client.request("GET", server.url + "/small", timeout_s=60.0).json() == [1]


@pytest.mark.parametrize("body", [b"", b"half", b"[" * 100_000, b"\xff"])
def test_a_body_that_is_not_json_is_none(client: HttpClient, body: bytes) -> None:
    with scripted_engine(path=(200, body)) as server:
        assert client.request("GET", server.url + "/path", timeout_s=60.0).json() is None


@pytest.mark.parametrize("size", [b"zz", b"-5"])
def test_a_chunk_of_no_size_is_a_broken_response(client: HttpClient, size: bytes) -> None:
    with (
        scripted_engine(
            path=(200, lambda: [size + b"\r\n{}"], {"Transfer-Encoding": "chunked"})
        ) as server,
        pytest.raises(NoResponse),
    ):
        client.request("GET", server.url + "/path", timeout_s=60.0)


def test_failures_are_told_apart_and_show_no_header(client: HttpClient) -> None:
    headers = {"Authorization": KEY}
    with scripted_engine(reset="reset", hang="hang") as server:
        urls = {
            f"http://127.0.0.1:{free_port()}": ConnectFailed,
            server.url + "/hang": ResponseTimeout,
            server.url + "/reset": NoResponse,
            "http://user:sk-very-secret@:x/": NoResponse,
        }
        for url, failure in urls.items():
            with pytest.raises(NoResponse) as caught:
                client.request(
                    "GET",
                    url,
                    headers=headers,
                    timeout_s=0.2 if failure is ResponseTimeout else 60.0,
                )
            assert type(caught.value) is failure
            assert caught.value.__cause__ is caught.value.__context__ is None
            assert "very-secret" not in "".join(traceback.format_exception(caught.value))


def test_a_header_that_cannot_be_sent_is_not_shown(client: HttpClient) -> None:
    with pytest.raises(NoResponse) as caught:
        client.request(
            "GET", "http://127.0.0.1:1", headers={"Authorization": f"{KEY}\n"}, timeout_s=1.0
        )
    assert str(caught.value) == "InvalidHeader"


def test_the_machines_netrc_is_never_used(
    client: HttpClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with scripted_engine(path=(200, b"")) as server:
        client.request("GET", server.url + "/path", timeout_s=60.0)
        assert "Authorization" not in server.requests[0][2]


def test_the_machines_proxies_are_used(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with scripted_engine(path=(200, b"")) as server, scripted_engine() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        client.request("GET", server.url + "/path", timeout_s=60.0)
        assert len(proxy.requests) == 1 and not server.requests


def test_the_login_of_an_address_is_sent_unless_there_is_a_key(client: HttpClient) -> None:
    with scripted_engine(path=(200, b"")) as server:
        url = server.url.replace("//", "//me:se%40cret@") + "/path"
        for headers in ({}, {"Authorization": KEY}):
            client.request("GET", url, headers=headers, timeout_s=60.0)
        sent = [request[2]["Authorization"] for request in server.requests]
    assert sent == [f"Basic {b64encode(b'me:se@cret').decode()}", KEY]
