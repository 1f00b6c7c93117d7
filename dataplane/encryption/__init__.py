"""Encryption at rest: the files of a stream with `encryption=true`, and the keys that open them.

    master key    32 bytes, the operator's: from the environment or a file, never on a broker's disk (`master_keys`)
        wraps
    data key      32 random bytes, one for each partition and life of its leader (`keyring`)
        encrypts
    batch         AES-256-GCM, one call for a batch (`bodies`)

The leader encrypts a batch once, when it appends it. Followers and their disks hold it byte for byte and need no key:
headers, which stay in the clear, hold all that replication, the log and producers' state ask for. A broker decrypts
batches for consumers and for compaction.

Protection: a thief of a disk, a backup or a follower's folder reads no key, value or record header, and cannot change,
move or exchange a batch unnoticed; sizes, counts, timestamps and producer ids are readable. A client that may read the
stream over NATS reads it in the clear; TLS on the way is NATS's.
"""
