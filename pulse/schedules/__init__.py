"""Schedules: time rules that make tasks or workflow instances, each instant once, whatever happens to the nodes."""
