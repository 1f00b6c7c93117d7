"""Streams as Spark data frames: the data source `tidelog`, for batch and structured streaming, reads and writes.

The connector is a client like any other. The driver asks where the committed log of each partition begins and ends and
cuts that into offset ranges; a task fetches exactly its range and hands it to Spark as Arrow batches.

    options ─ parsed text of the user            columns ─ the rows: schema, and record batches as Arrow
    positions ─ offsets as Spark stores them     log_port ─ requests to a log; client_log answers over NATS
    planning ─ from positions to offset ranges   packing ─ from ranges to tasks
    bounds ─ where the logs begin and end        reading ─ a task: its ranges to Arrow batches
    connections ─ those that a process keeps     retrying ─ waits for a cluster that does not answer
    cluster ─ asks a cluster, with patience      option_values ─ options of reads and writes alike
    inline_files ─ certificates given as text    plain_errors ─ errors of one sentence
    java ─ a runtime for Spark to run on         batch_reader, stream_reader, source ─ called by Spark
    values ─ JSON, Avro and Protobuf, for users  freezing ─ a worker collects less garbage
    sql ─ views of streams, for users

Writes:

    sink_options ─ parsed text of the user       sink_rows ─ which columns, and Arrow batches as records
    sink_delivery ─ a task: sends its rows       sinks ─ called by Spark, and the commit on the driver
    committed_batch ─ knows a batch again

It takes no filters from Spark (`pushFilters`). All queries of one `load()` share the reader that Spark hands the
filters to, so a filter of one query would take records from another one. `assign`, offsets and timestamps narrow a
read.
"""
