"""An engine that samples given ids."""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from dataclasses import dataclass, field

from rollq.events import Finish, VersionSpan
from rollq_worker.protocols import Generated, SampleRequest


@dataclass
class Piece:
    """What the engine gives for one request."""

    ids: array[int]
    finish: Finish = Finish.STOP
    version: str = "v0"


@dataclass
class ScriptedEngine:
    """Gives these pieces one after another, the last one again and again."""

    pieces: list[Piece]
    requests: list[array[int]] = field(default_factory=list)
    """The ids of every request, as sent."""

    def room(self, prompt: int) -> int:
        return 1 << 30

    def generate(self, request: SampleRequest) -> Generated:
        request.check()
        self.requests.append(request.ids[:])
        piece = self.pieces[min(len(self.requests), len(self.pieces)) - 1]
        return Generated(
            ids=piece.ids,
            logprobs=array("f", [-0.5] * len(piece.ids)),
            versions=[VersionSpan(piece.version, 0, len(piece.ids))],
            finish=piece.finish,
        )
