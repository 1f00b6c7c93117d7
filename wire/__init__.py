"""Everything that crosses a process boundary, and nothing else.

This floor holds the vocabulary of all of Tidelog: types, errors, subjects, the settings of streams, the layouts of
their keys. The rooms import it; it imports none of them. Pure: no I/O, no clock, no randomness.
"""
