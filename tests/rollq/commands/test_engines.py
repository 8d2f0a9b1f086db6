"""`rollq engines`: the list of engines that workers use."""

from tests.rollq.commands.conftest import Says


def test_the_list_is_printed_after_each_change(says: Says) -> None:
    def engines(command: str, *urls: str) -> list[str]:
        return says("engines", command, "pool", *urls).out.split()

    assert engines("list") == []
    assert engines("add", "http://b:2/", "http://key@a:1") == ["http://b:2", "http://***@a:1"]
    assert engines("add", "http://b:2") == ["http://b:2", "http://***@a:1"]
    assert engines("remove", "http://key@a:1") == ["http://b:2"]
    assert engines("list") == ["http://b:2"]
