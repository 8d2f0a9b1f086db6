"""A trainer's view of a batch: advantages, arrays, and the age of its tokens."""
