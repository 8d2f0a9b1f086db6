"""Keys and values of many sequences in one tensor, and a model's forward pass over them.

A slot holds one sequence. `held[slot]` are the tokens whose keys and values it has, so a sequence
that begins with the tokens of another slot starts from a copy. It knows nothing of requests.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel


class Slots:
    """`count` sequences of up to `context` tokens. It takes the place of a transformers cache in
    the forward pass.
    """

    def __init__(self, model: PreTrainedModel, count: int, context: int) -> None:
        config = model.config
        # Tokens of padding and of idle slots are written to the last place, which no sequence
        # reads.
        shape = (
            config.num_hidden_layers,
            2,
            count,
            config.num_key_value_heads,
            context + 1,
            config.head_dim,
        )
        self.model = model
        self.context = context
        self.held: list[list[int]] = [[] for _ in range(count)]
        self._kv = torch.zeros(shape, dtype=model.dtype)
        self._rows = self._places = torch.empty(0)
        self._read: slice | Tensor = slice(0)
        self._length = 0

    def begin(self, ids: list[int], free: list[int]) -> tuple[int, int]:
        """Takes one of the `free` slots, which are in the order in which they became free, for a
        sequence that begins with `ids`. Returns the slot and how many of the ids it holds.
        """
        known = [
            common_prefix(held, ids[:-1]) for held in self.held
        ]  # the last token's logits are needed
        source = max(range(len(known)), key=known.__getitem__)
        length = known[source]
        slot = source if source in free and length == len(self.held[source]) else free[0]
        if slot != source:
            self._kv[:, :, slot, :, :length] = self._kv[:, :, source, :, :length]
        self.held[slot] = ids[:length]
        return slot, length

    def forget(self) -> None:
        """The weights have changed."""
        self.held = [[] for _ in self.held]

    @torch.inference_mode()
    def forward(self, new: dict[int, list[int]]) -> dict[int, Tensor]:
        """Appends these tokens to the sequences of these slots. Returns the logits that follow
        each.
        """
        width = max(map(len, new.values()))
        every = (
            width == 1
        )  # reading all slots up to the last one needs no copy of their keys and values
        slots = list(range(max(new) + 1)) if every else list(new)
        tokens = torch.zeros(len(slots), width, dtype=torch.long)
        places = torch.full((len(slots), width), self.context)
        for row, slot in enumerate(slots):
            ids = new.get(slot, [])
            start = len(self.held[slot])
            tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            places[row, : len(ids)] = torch.arange(start, start + len(ids))
            self.held[slot] += ids
        self._rows = torch.tensor(slots)[:, None]
        self._places = places
        self._read = slice(len(slots)) if every else torch.tensor(slots)
        self._length = max(len(self.held[slot]) for slot in new)
        visible = torch.arange(self._length) <= places[:, :, None]
        hidden = self.model.model(
            tokens,
            attention_mask={"full_attention": visible[:, None]},
            position_ids=places,
            cache=self,
            use_cache=True,
        ).last_hidden_state
        last = [(slots.index(slot), len(ids) - 1) for slot, ids in new.items()]
        logits = self.model.lm_head(
            hidden[[row for row, _ in last], [place for _, place in last]]
        ).float()
        return dict(zip(new, logits, strict=True))

    def update(
        self, keys: Tensor, values: Tensor, layer: int, **_: object
    ) -> tuple[Tensor, Tensor]:
        """Called by transformers in each layer: stores what is new, and returns what each token may
        look at.
        """
        cached_keys, cached_values = self._kv[layer]
        cached_keys[self._rows, :, self._places] = keys.transpose(1, 2)
        cached_values[self._rows, :, self._places] = values.transpose(1, 2)
        return cached_keys[self._read, :, : self._length], cached_values[
            self._read, :, : self._length
        ]


def common_prefix(a: list[int], b: list[int]) -> int:
    """The number of ids with which both begin."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
