"""Runs and exported files as web pages on loopback: `rollq view`, and one rollout in one file:
`rollq show --html`.
"""
