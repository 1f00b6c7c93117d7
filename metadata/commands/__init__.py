"""The effect of each command of the metadata group on the cluster state.

One function per command: `command(ledger, message) -> Outcome`. It is total and deterministic. A refusal is an outcome
and changes nothing; a change goes through the ledger, which raises the generation and the partition epochs.
"""
