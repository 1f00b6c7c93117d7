"""Everything that crosses a process boundary, and nothing else: types, batch codec, envelope, protobufs, subjects,
error table.

Pure: no I/O, no clock, no randomness.
"""
