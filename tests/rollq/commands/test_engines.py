"""`rollq engines`: the list of engines that workers use."""

import pytest

from rollq import cli


def test_the_list_is_printed_after_each_change(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def engines(*flags: str) -> list[str]:
        assert cli.main(["engines", "--redis", redis_url, "--name", "pool", *flags]) == 0
        return capsys.readouterr().out.split()

    assert engines() == []
    assert engines("--add", "http://b:2/", "--add", "http://key@a:1") == ["http://b:2", "http://***@a:1"]
    assert engines("--add", "http://b:2", "--remove", "http://key@a:1") == ["http://b:2"]
    assert engines() == ["http://b:2"]
