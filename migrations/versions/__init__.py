"""The schema revisions, one module each, named by their number and what they bring."""
