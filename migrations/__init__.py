"""Move a database from one schema version to the next, and say which version it has.

Revisions are written out by hand and never import the table declarations, so that an old revision keeps its meaning
when a declaration changes.
"""
