"""The one composition root: builds a node of its parts and runs it. It decides nothing.

A node is the HTTP listener, the worker socket, both layers and their loops over one database. Draining goes from the
outside in: no new work, then what is in flight, then the batches, then the database.
"""
