"""Pulse's statements, one function each; they lock in the house's order and check what they write."""
