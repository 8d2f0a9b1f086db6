"""The tests that ship for readers find the faults that a reader may have."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rollq.env import Action
from rollq.job import Json
from rollq_worker.toolcalls import PARSERS
from rollq_worker.toolcalls.format_tests import FormatTests, Write, reader_tests
from rollq_worker.toolcalls.pieces import Kind, Piece, Reader
from tests.rollq_worker.toolcalls.written import WRITE

READ = "test_every_well_formed_call_is_read_as_it_is"
TYPED = "test_a_value_that_fits_no_type_is_no_call"
CUT = "test_a_call_cut_anywhere_is_never_another_call"
TILED = "test_pieces_tile_every_turn_and_no_text_is_lost"


def failing(reader: Reader, write: Write) -> set[str]:
    """The names of the tests that fail."""
    tests = reader_tests(reader, write)()
    failed = set()
    for name in (name for name in vars(FormatTests) if name.startswith("test")):
        try:
            getattr(tests, name)()
        except AssertionError:
            failed.add(name)
    return failed


def test_values_that_stay_text_are_found():
    untyped = Reader(
        lambda text, thinking, tools: PARSERS["qwen3_coder"].pieces(text, thinking, ())
    )
    assert failing(untyped, WRITE["qwen3_coder"]) >= {READ, TYPED}


def test_a_mended_call_is_found():
    def mended(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
        pieces = PARSERS["hermes"].pieces(text, thinking, tools)
        return [
            replace(piece, kind=Kind.CALL, errors=(), calls=(Action("get_order", {}),))
            if piece.kind is Kind.BROKEN
            else piece
            for piece in pieces
        ]

    assert failing(Reader(mended), WRITE["hermes"]) == {CUT}


def test_lost_text_is_found():
    without_text = Reader(
        lambda *turn: [
            piece for piece in PARSERS["hermes"].pieces(*turn) if piece.kind is not Kind.TEXT
        ]
    )
    assert failing(without_text, WRITE["hermes"]) == {TILED}


def test_a_reader_that_raises_is_found():
    def careless(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
        if "\ufffd" in text:
            raise ValueError(text)
        return PARSERS["hermes"].pieces(text, thinking, tools)

    with pytest.raises(AssertionError, match=r"turns fail\. The shortest: .*ValueError"):
        reader_tests(
            Reader(careless), WRITE["hermes"]
        )().test_pieces_tile_every_turn_and_no_text_is_lost()


@pytest.mark.parametrize(
    ("kind", "calls", "problem"),
    [
        (Kind.CALL, (), "a piece of kind call has no calls"),
        (Kind.TEXT, (Action("f", {}),), "a piece of kind text has calls"),
    ],
)
def test_a_piece_whose_kind_and_calls_disagree_is_named(
    kind: Kind, calls: Sequence[Action], problem: str
):
    reader = Reader(lambda text, thinking, tools: [Piece(kind, 0, len(text), calls=calls)])
    with pytest.raises(AssertionError, match=problem):
        reader_tests(reader, WRITE["hermes"])().test_pieces_tile_every_turn_and_no_text_is_lost()


def test_another_types_value_is_found():
    def as_float(text: str, thinking: bool | None, tools: Sequence[Json]) -> list[Piece]:
        def floats(call: Action) -> Action:
            return Action(
                call.name, {key: float(v) if v is True else v for key, v in call.arguments.items()}
            )

        return [
            replace(piece, calls=tuple(map(floats, piece.calls)))
            for piece in PARSERS["hermes"].pieces(text, thinking, tools)
        ]

    assert failing(Reader(as_float), WRITE["hermes"]) == {READ}
