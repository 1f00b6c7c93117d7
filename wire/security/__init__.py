"""Permissions and proofs: the permissions that each role needs of NATS, the secrets of a cluster, the keys of producers
with the proofs made by them, and the tickets of transactions. It imports `wire.batch`, `wire.operations`,
`wire.internal_records` and the protobufs; it must not import `wire.messaging`."""
