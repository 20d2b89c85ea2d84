"""The SDK: `Client` for the HTTP API, `Worker` for the worker socket.

It speaks the two protocols and nothing else: no database, no gevent, and it never patches the process it runs in. User
code imports the names from `orbit`, which loads the modules here only when they are asked for.
"""
