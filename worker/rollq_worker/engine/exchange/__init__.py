"""One exchange with a server: the connection, the ids of a prompt, the protocol of a kind of
server, and the meaning of its answer.
"""
