"""Keep tasks durably: queues, leases, limits, retries and schedules.

Knows nothing of workflows: `engine` registers a listener that is called when a task it owns ends.
"""
