"""Experiment trackers, each found by its entry point of the group `rollq.trackers`. They send the
metrics of steps, and of the machine, the code and the environment nothing.
"""
