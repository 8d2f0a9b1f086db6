"""`rollq engines`: the list of engines that workers use."""

import pytest

from rollq import cli


def test_the_list_is_printed_after_each_change(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def engines(command: str, *urls: str) -> list[str]:
        assert cli.main(["engines", command, "pool", *urls, "--redis", redis_url]) == 0
        return capsys.readouterr().out.split()

    assert engines("list") == []
    assert engines("add", "http://b:2/", "http://key@a:1") == ["http://b:2", "http://***@a:1"]
    assert engines("add", "http://b:2") == ["http://b:2", "http://***@a:1"]
    assert engines("remove", "http://key@a:1") == ["http://b:2"]
    assert engines("list") == ["http://b:2"]
