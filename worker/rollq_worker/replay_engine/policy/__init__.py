"""The policy of the replay engine: the next move of the task that a conversation is about, or a
made-up one.
"""
