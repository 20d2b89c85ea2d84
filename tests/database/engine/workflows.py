"""Workflows that several tests of the engine use."""

TWO_TASKS = """
orbit: weave/1
workflow: two
version: 1
input: {type: object}
timeout: 1d
defaults: {queue: main, start_within: 10m}
steps:
  - {id: a, task: do.a@1}
  - {id: b, task: do.b@1}
"""
