"""Functions of the log: leader epochs, producers, transactions, message ids. Pure. Nothing in this room imports another
module of the replica."""
