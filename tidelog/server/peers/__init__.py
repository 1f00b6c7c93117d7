"""Messages between brokers are authenticated: see `tags` for the proof, `replay` for copies, `link` for the port."""
