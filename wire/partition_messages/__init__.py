"""Messages to the leader of a partition and its answers, byte by byte: Tidelog's append, the 16 bytes before answers to
fetches, Liftbridge's envelope, and JetStream's headers and errors. No other room of `wire` imports it."""
