"""One broker as a process, and a development cluster of several. The only place that puts all planes together."""

from tidelog.process.shadowing import check_not_hidden

check_not_hidden("metadata", "dataplane")
