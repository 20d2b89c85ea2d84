"""Weave's statements: instances, their steps, values, stimuli and history. One function is one named statement."""
