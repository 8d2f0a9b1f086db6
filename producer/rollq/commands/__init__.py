"""The commands of `rollq`, one noun a file; each offers `add(commands)` to declare itself.

A command's module may be imported without its dependencies: what is heavy is imported when the command runs.
"""
