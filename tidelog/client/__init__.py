"""The client: producer, consumer, admin and metadata cache.

Layers, from pure to driven:

- `accumulator` (with `batches` and `leader_link`), `partitioner`, `runs`, `encoding`, `fetcher`, `positions`: what to
  send and ask, and the meaning of answers; no I/O, time is an argument.
- `api`, `metadata`: requests to the controller, with retries, and the cached answers.
- `membership`: one member of a consumer group; no I/O, time is an argument. `group_session` drives it,
  `group_partitions` begins and gives up what it is assigned, `group_reading` reads that, `group_commits` commits.
- `producer` (with `pipe`, `send_buffer`, `receipts`, `upkeep`), `consumer`, `connection` (with `connecting`): asyncio
  around the above.

Nothing is imported here: `import tidelog` and `tidelog --help` must stay quick.
"""
