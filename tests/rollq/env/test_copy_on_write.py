"""Copy-on-write tables against plain dicts."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.env.copy_on_write import SharedDatabase, Table

SHARED = {"a": {"n": 1, "list": [1]}, "b": {"n": 2, "list": []}, "c": {"n": 3, "list": [3]}}
KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), KEYS),
        st.tuples(st.just("append"), KEYS),
        st.tuples(st.just("set"), KEYS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("pop"), KEYS),
        st.tuples(st.just("scan"), KEYS),
    ),
    max_size=20,
)


def database(tables=None):
    return SharedDatabase(
        tables or {"t": SHARED}, copy=copy.deepcopy, canon=lambda r: json.dumps(r, sort_keys=True)
    )


def apply(table, operation, key):
    match operation:
        case "get":
            return table[key]
        case "append":
            table[key]["list"].append(9)
        case "set":
            table[key] = {"n": 9, "list": [table.get(key)]}
        case "delete":
            del table[key]
        case "pop":
            return table.pop(key, "nothing")
        case "scan":
            return list(table), list(table.items()), list(table.values()), len(table), key in table


def outcome(table, operation, key):
    try:
        return copy.deepcopy(apply(table, operation, key))
    except KeyError as e:
        return repr(e)


@given(OPERATIONS)
def test_a_table_behaves_as_a_dict_and_leaves_the_shared_one_alone(operations):
    shared = copy.deepcopy(SHARED)
    db = database({"t": shared})
    view, plain = db.view(), copy.deepcopy(SHARED)
    for operation, key in operations:
        assert outcome(view["t"], operation, key) == outcome(plain, operation, key)
    assert list(view["t"].items()) == list(plain.items())
    assert shared == SHARED
    expected = {f"t/{k}" for k in plain.keys() | SHARED if plain.get(k) != SHARED.get(k)}
    assert db.changes(view).keys() == expected


@given(OPERATIONS, OPERATIONS)
def test_changes_are_equal_exactly_when_the_data_is(left, right):
    db = database()
    views = []
    for operations in (left, right):
        views.append(view := db.view())
        for operation, key in operations:
            outcome(view["t"], operation, key)
    one, other = (dict(view["t"]) for view in views)
    assert (db.changes(views[0]) == db.changes(views[1])) == (one == other)


def test_reading_is_no_change_and_scanning_copies_nothing():
    db = database()
    view = db.view()
    assert view["t"]["a"] == {"n": 1, "list": [1]}
    assert [r["n"] for r in view["t"].values()] == [1, 2, 3]
    assert view["t"].touched() == {"a"}
    assert db.changes(view) == {}


def test_views_do_not_see_each_other():
    db = database()
    one, other = db.view(), db.view()
    one["t"]["a"]["n"] = 7
    del one["t"]["b"]
    assert (other["t"]["a"]["n"], "b" in other["t"]) == (1, True)


@pytest.mark.parametrize("value", [1.0, True, "1"])
def test_the_canonical_text_decides_what_a_change_is(value):
    db = database()
    view = db.view()
    view["t"]["a"]["n"] = value
    assert db.changes(view).keys() == {"t/a"}
    view["t"]["a"]["n"] = 1
    assert db.changes(view) == {}


def test_a_change_is_named_as_the_caller_says():
    db = SharedDatabase(
        {"t": SHARED}, copy=copy.deepcopy, canon=str, name=lambda table, key: key.upper()
    )
    view = db.view()
    view["t"]["a"]["n"] = 7
    assert db.changes(view).keys() == {"A"}


def test_a_record_that_was_only_read_is_not_written_out():
    """Frozen records need no copy, so the shared one comes back."""
    db = SharedDatabase(
        {"t": {"a": (1, 2)}}, copy=lambda record: record, canon=lambda record: 1 / 0
    )
    view = db.view()
    assert view["t"]["a"] == (1, 2)
    assert db.changes(view) == {}


def test_half_a_surrogate_pair_is_a_change_like_any_other():
    db = SharedDatabase({"t": SHARED}, copy=copy.deepcopy, canon=str)
    view = db.view()
    view["t"]["a"]["n"] = "\ud800"
    assert db.changes(view).keys() == {"t/a"}


def test_unhashable_keys_fail_as_in_a_dict():
    table = Table(SHARED, copy.deepcopy)
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        table[["a"]]
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        _ = ["a"] in table


@pytest.mark.parametrize("scan", ["items", "values"])
def test_a_scan_shows_what_was_changed_since_it_began_as_a_dict_does(scan):
    tables = database().view()["t"], copy.deepcopy(SHARED)
    seen = []
    for table in tables:
        pairs = iter(getattr(table, scan)())
        first = copy.deepcopy(next(pairs))
        table["c"]["list"].append(9)
        table["b"] = {"n": 0, "list": []}
        seen.append([first, *pairs])
    assert seen[0] == seen[1] and SHARED["c"]["list"] == [3]


def test_a_record_may_be_fetched_within_a_scan():
    table = database().view()["t"]
    table["new"] = {"n": 0}
    table["newer"] = {"n": 1}
    seen = []
    for key, record in table.items():
        if key == "new":
            assert table["a"]["n"] == SHARED["a"]["n"]
            table["newer"] = {"n": 2}
        seen.append((key, record.get("n")))
    assert seen[-2:] == [("new", 0), ("newer", 2)]
