"""Serve Orbit: HTTP resources, the worker socket, OpenAPI and the composition of a node.

This is the only package that knows all others. What a request means is decided below, in `engine` and `pulse`.
"""
