"""One broker as a process, and a development cluster of several. The only place that puts all planes together."""
