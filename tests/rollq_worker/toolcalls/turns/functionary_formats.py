"""Turns in Functionary's formats."""

from rollq.env import Action
from tests.rollq_worker.toolcalls.turns.turn import f, turns_of

tagged = turns_of("functionary_v31")
CALL = '<function=f>{"s": "hi"}</function>'
FUNCTIONARY31_TURNS = [
    tagged(
        "an end tag in a string",
        '<function=f>{"s": "</function>"}</function>',
        calls=[f(s="</function>")],
    ),
    tagged("a list", "<function=f>[1]</function>", error="not a JSON object"),
    tagged(
        "words in the tag",
        '<function=f>{"s": "hi"} so</function>',
        error="text behind its arguments",
    ),
    tagged("an open call", CALL.removesuffix("</function>"), error="was not closed"),
]

messages = turns_of("functionary_v32")
FUNCTIONARY32_TURNS = [
    messages("words of a prompt", "all\n>>> 1 + 1\n2", content=">>> 1 + 1\n2"),
    messages("with the sign of the header", '>>>f\n{"s": "hi"}', calls=[f(s="hi")]),
    messages("a recipient in a string", 'f\n{"s": ">>>g"}', calls=[f(s=">>>g")]),
    messages("no recipient", "Hello there.", error="does not begin with a recipient"),
    messages("text behind", 'f\n{"s": "hi"} ok', error="text behind"),
    messages(
        "a bad and a good call",
        "f\n{>>>g\n{}",
        calls=[Action("g", {})],
        content="f\n{",
        error="not valid JSON",
    ),
]
TURNS = [*FUNCTIONARY31_TURNS, *FUNCTIONARY32_TURNS]
