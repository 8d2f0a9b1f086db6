"""What a trainer makes of a batch: advantages, arrays, a tree of shared prefixes, and how old its
tokens are.
"""
