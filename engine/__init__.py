"""Run workflows: the pure step function of an instance, and the shell that loads, calls and stores it.

Leaves the execution of single tasks to `pulse` and the language to `definitions`.
"""
