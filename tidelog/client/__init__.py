"""The client: producer, consumer, admin and metadata cache.

Layers, from pure to driven:

- `accumulator`, `partitioner`, `fetcher`, `positions`: what to send and ask, and what an answer means; no I/O, time
  is an argument.
- `api`, `metadata`: requests to the controller, with retries, and what was learned from them.
- `producer`, `consumer`, `connection`: asyncio around the above.

Nothing is imported here: `import tidelog` and `tidelog --help` must stay quick.
"""
