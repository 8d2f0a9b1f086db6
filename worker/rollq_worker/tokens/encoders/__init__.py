"""A faster encoder for plain text, where one gives the tokenizer's ids.

It knows the model, splitting and normalisation of a tokenizer.json. It does not know added tokens, except for rows of
white space, nor chat templates.
"""

from rollq_worker.tokens.encoders.encoder import MAX_LENGTH, Encode, Fast, fast_encoder

__all__ = ["MAX_LENGTH", "Encode", "Fast", "fast_encoder"]
