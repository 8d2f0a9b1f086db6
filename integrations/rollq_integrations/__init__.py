"""Connections of rollq to other people's packages: one room for each, found by its name or by an
entry point.

A room knows the public API of rollq alone (docs/architecture.md), so that a package of yours can do
what it does.
"""
