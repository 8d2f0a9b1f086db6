"""The common case of an append does to the ledger what its general way does, and renews a lease
that has run for a third.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollq.ledger.constants import LEASE_S
from rollq.ledger.ledger import Ledger
from rollq.ledger.scripts import source
from tests.rollq.samples import claim, group

COMMON = "if type(till) == 'string' and"
TEXT, _ = source("append")
LEASE = "1#token"
NUMBERS = st.sampled_from([None, b"0", b"1", b"2", b"7", b"12345"])
BLOBS = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3)


@st.composite
def appends(draw: st.DrawFn) -> list[tuple[int, str, bytes, list[bytes]]]:
    """Where each begins, from the end of the journal on; which entries end a turn; its prompt's
    digest; entries.
    """
    found = []
    for _ in range(draw(st.integers(1, 5))):
        blobs = draw(BLOBS)
        ends = draw(
            st.sampled_from(["0" * (len(blobs) - 1) + "1", "0" * len(blobs), "1" * len(blobs)])
        )
        found.append(
            (
                draw(st.sampled_from([0, 0, 0, -1, -2, 1])),
                ends,
                draw(st.sampled_from([b"", b"", b"d"])),
                blobs,
            )
        )
    return found


@given(
    appends(),
    st.fixed_dictionaries(dict.fromkeys(("reach", "kept", "turned", "fail:worker"), NUMBERS)),
    st.sampled_from(["leased", "leased", "leased", "done"]),
    st.booleans(),
    st.integers(0, 2),
)
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_common_case_does_what_the_general_way_does(
    ledger: Ledger,
    calls: list[tuple[int, str, bytes, list[bytes]]],
    record: dict[str, bytes | None],
    state: str,
    held: bool,
    length: int,
) -> None:
    assert TEXT.count(COMMON) == 1
    general = TEXT.replace(COMMON, "if false and")
    case = (calls, record, state, held, length)
    assert played(ledger, TEXT, *case) == played(ledger, general, *case)


def played(
    ledger: Ledger,
    text: str,
    calls: list[tuple[int, str, bytes, list[bytes]]],
    record: dict[str, bytes | None],
    state: str,
    held: bool,
    length: int,
) -> list[object]:
    """The replies to appends to a journal of that length, and what the ledger holds after each."""
    redis, keys = ledger.redis, ledger.keys
    redis.flushdb()
    job, journal, leased = keys.job("r/g/0"), keys.journal("r/g/0"), keys.leased
    redis.hset(keys.meta, "any", 1)
    redis.hset(
        job,
        mapping={"state": state, "deadline": 2e9}
        | {k: v for k, v in record.items() if v is not None},
    )
    for entry in [b"header", b"prompt"][:length]:
        redis.rpush(journal, entry)
    if held:
        redis.zadd(leased, {f"r/g/0#{LEASE}": 1.0})
    seen: list[object] = []
    for offset, ends, digest, blobs in calls:
        index = max(0, redis.llen(journal) + offset)
        args = ["r/g/0", LEASE, index, ends, digest, b"prompt" if digest else b"", *blobs]
        seen.append(redis.eval(text, 1, keys.prefix, "r", *args))
        seen.append((redis.hgetall(job), redis.lrange(journal, 0, -1), redis.zrange(leased, 0, -1)))
        seen.append(
            (redis.hgetall(keys.count), redis.hgetall(keys.prompts("g")), sorted(redis.keys()))
        )
    return seen


def test_an_append_renews_a_lease_of_which_a_third_is_over(ledger: Ledger) -> None:
    ledger.submit(group())
    claim(ledger, "r/g/0")
    member, redis = f"r/g/0#{LEASE}", ledger.redis
    for index, (left, renewed) in enumerate(
        [(LEASE_S * 0.6, True), (LEASE_S * 0.9, False), (LEASE_S * 0.1, True)]
    ):
        until = ledger.scripts.now() + left
        redis.zadd(ledger.keys.leased, {member: until})
        ledger.append("r/g/0", LEASE, index, [b"x"])
        assert (redis.zscore(ledger.keys.leased, member) > until) is renewed
