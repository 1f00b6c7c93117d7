"""Messages between brokers are authenticated: see `peer_tags` for the proof, `replay_window` for copies, `peer_link`
for the port."""
