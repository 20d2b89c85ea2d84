"""The command line's frame and the commands that need nothing but the SDK.

Commands of higher packages come by the entry-point group `orbit.commands`, so that this package imports none of them.
"""
