"""Turn the text of a workflow into a checked step graph.

Pure but for the registry of published versions, the only module here with a database.
"""
