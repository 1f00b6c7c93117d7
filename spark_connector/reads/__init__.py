"""Reading streams: batch and streaming readers, their options, the plan (pure), tasks, and the log port with the client
behind it. It must not import writes."""
