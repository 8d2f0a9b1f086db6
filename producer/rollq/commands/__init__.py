"""The commands of `rollq`, one per module. Each module has `add(commands)`, which declares the
command and its flags.
"""
