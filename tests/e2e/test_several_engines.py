"""A worker whose engines come and go while it plays."""

from tests.e2e.stack import Stack, check_all_delivered, submit_singles
from tests.recorder import recording

JOBS = 120


def test_engines_are_added_and_removed_in_mid_run(stack: Stack) -> None:
    addresses = []
    for _ in range(2):
        stack.engine("--latency", "0.3")
        addresses.append(stack.engine_url)
    engines = stack.folder / "engines.txt"
    with (
        recording(addresses[0], stack.folder / "first.jsonl") as first,
        recording(addresses[1], stack.folder / "second.jsonl") as second,
    ):
        engines.write_text(f"{first.url}\n")
        worker = stack.worker(8, engine_url=f"file:{engines}")
        submit_singles(stack, "several", JOBS)
        stack.wait(lambda: len(first.calls()) > 10, 150, "replies of the first engine")
        assert not second.calls()

        engines.write_text(f"{first.url}\n{second.url}\n")
        stack.wait(second.calls, 150, "replies of the second engine")

        engines.write_text(f"{second.url}\n")
        last = [-1, 0]

        def only_the_second() -> bool:
            """The first engine got nothing while the second answered eight times."""
            if len(first.calls()) != last[0]:
                last[:] = [len(first.calls()), len(second.calls())]
            return len(second.calls()) >= last[1] + 8

        stack.wait(only_the_second, 150, "the end of the first engine's requests")
        stats = check_all_delivered(stack, "several", JOBS)
        worker.terminate()  # before its engines
        assert worker.wait(60) == 0
    assert not stats["failures"] and not stats["redelivered"], stack.logs()
