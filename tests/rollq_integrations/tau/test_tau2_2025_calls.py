"""Calls that a policy gets wrong in tau2_2025, and how an episode ends."""

import pytest

from rollq.env import Action, Observation
from rollq_integrations.tau.backend import TAU2_STOP_MARKERS
from rollq_worker.environments import domain
from tests.rollq_worker.environments.episodes import begin, respond

pytestmark = [pytest.mark.packages, pytest.mark.filterwarnings("ignore::UserWarning:pydantic")]


@pytest.fixture
def airline():
    return begin(domain("tau2_2025:airline"), 0, *["hello"] * 9)


BOOKING = {
    "user_id": "mia_li_3668",
    "origin": "JFK",
    "destination": "SEA",
    "flight_type": "one_way",
    "cabin": "economy",
    "flights": [{"flight_number": "HAT083", "date": "2024-05-20"}],
    "passengers": [{"first_name": "Mia", "last_name": "Li", "dob": "1990-04-05"}],
    "payment_methods": [],
    "total_baggages": 0,
    "nonfree_baggages": 0,
    "insurance": "no",
}


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("fly", {}, "Tool fly not found"),
        ("initialize", {}, "Tool initialize not found"),
        ("get_user_details", {}, "'user_id' is a required property"),
        ("get_user_details", {"user_id": ["mia_li_3668"]}, "is not of type 'string'"),
        ("get_user_details", {"user_id": "nobody"}, "User nobody not found"),
        ("book_reservation", {**BOOKING, "total_baggages": True}, "is not of type 'integer'"),
        ("book_reservation", {**BOOKING, "total_baggages": 10**30}, "too large"),
        ("book_reservation", {**BOOKING, "flights": [[[[[]]]] for _ in range(3)]}, "Error: "),
        ("calculate", {"expression": "9**9**9"}, "too large"),
        ("calculate", {"expression": "__import__('os')"}, "Invalid characters"),
        ("calculate", {"expression": "(" * 400 + "1" + ")" * 400}, "Error: "),
    ],
)
def test_a_wrong_call_is_an_observation(airline, name, arguments, message):
    observation = airline.step(Action(name, arguments))
    assert observation.text.startswith("Error: ")
    assert message in observation.text
    assert not observation.done
    assert airline._backend.database.changes(airline._state) == {}


def test_errors_without_end_are_cut(airline):
    text = airline.step(Action("book_reservation", {**BOOKING, "flights": ["x"] * 10_000})).text
    assert text.startswith(
        "Error: 20 of the arguments of book_reservation are wrong: 'x' is not valid"
    )
    assert len(text) < 1500


def test_whole_floats_are_integers(airline):
    text = airline.step(Action("send_certificate", {"user_id": "mia_li_3668", "amount": 50.0})).text
    assert text.endswith("with amount 50.")


def test_a_transfer_leaves_the_last_word_to_the_user():
    environment = begin(domain("tau2_2025:airline"), 0, "ok ###TRANSFER### bye")
    assert environment.step(Action("transfer_to_human_agents", {"summary": "x"})) == Observation(
        "Transfer successful"
    )
    assert environment.step(respond("You are being transferred.")).done


@pytest.mark.parametrize("marker", TAU2_STOP_MARKERS)
def test_the_user_s_markers_end_it(marker):
    environment = begin(domain("tau2_2025:retail"), 0, f"so {marker} then")
    assert environment.step(respond("hi")) == Observation(f"so {marker} then", True)
