"""The common parts of all commands: the session with a cluster, login options, completion of names, tables, points in
time, texts that are safe to show.

It must not import a command.
"""
