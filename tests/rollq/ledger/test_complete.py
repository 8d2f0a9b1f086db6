"""A completion that does not end its group does to the ledger what one does that looks whether it
does.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from rollq.ledger.ledger import Ledger
from rollq.ledger.scripts import source

TEXT, _ = source("complete")
OVER = "local over = "
LEASE = "1#token"
NUMBERS = st.integers(0, 4).map(str)
GROUP = st.fixed_dictionaries(
    {
        "size": st.integers(1, 4).map(str),
        "spare": st.integers(0, 2).map(str),
        "viable": st.sampled_from(["1", "2"]),
    }
    | dict.fromkeys(("done", "dead", "surplus"), NUMBERS)
    | {
        "state": st.sampled_from(["open", "open", "open", "ready"]),
        "purpose": st.sampled_from(["train", "eval"]),
    }
)
TALLY = "turns 2 stop:done 1 reward_sum 0.1"


@given(
    GROUP,
    st.dictionaries(st.sampled_from(["done", "turns", "reward_sum"]), NUMBERS),
    st.sampled_from([0, 2, 3]),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_completion_knows_whether_its_group_is_over(
    ledger: Ledger, group: dict[str, str], totals: dict[str, str], index: int
) -> None:
    assert TEXT.count(OVER) == 1
    always = TEXT.replace(OVER, OVER + "true or ")
    assert played(ledger, TEXT, group, totals, index) == played(
        ledger, always, group, totals, index
    )


def played(
    ledger: Ledger, text: str, group: dict[str, str], totals: dict[str, str], index: int
) -> list[object]:
    """The replies to a completion and its repeat, or what is wrong with the group; then what the
    ledger holds.
    """
    redis, keys = ledger.redis, ledger.keys
    redis.flushdb()
    redis.hset(keys.meta, "any", 1)
    redis.hset(keys.group("g"), mapping={"seq": 1, "handed": 0, "queue": "rollq"} | group)
    redis.zadd(f"{keys.prefix}open:{group['purpose']}", {"g": 1})
    if totals:
        redis.hset(keys.count, mapping=totals)
    redis.hset(keys.job("r/g/0"), mapping={"state": "leased", "attempt": 1, "token": "token"})
    redis.rpush(keys.journal("r/g/0"), b"header", b"prompt")
    redis.zadd(keys.leased, {f"r/g/0#{LEASE}": 1.0})
    args = ["r", "r/g/0", LEASE, index, TALLY, "1", "", "", b"end"]
    replies = []
    for _ in range(2):
        try:
            replies.append(str(redis.eval(text, 1, keys.prefix, *args)))
        except ResponseError as e:
            # Which names the script.
            replies.append(str(e).partition("DAMAGED")[2].partition(" script: ")[0])
    hashes = [redis.hgetall(key) for key in (keys.group("g"), keys.job("r/g/0"), keys.count)]
    return [*replies, *hashes, sorted(redis.keys())]
