"""The commands of `rollq`, one a module. Each module has `add(commands)`, which declares the command and its flags."""
