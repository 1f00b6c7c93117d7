"""Four Spark jobs on a year of flights. Each brings its own cluster, and compares its result with pandas.

scripts/example hourly_departures      windowed counts, with a watermark on the records' event time
scripts/example flights_with_weather   a join of two streams
scripts/example delayed_flights        read, transform, write to another stream: each record once
scripts/example planes                 the changes of a compacted stream, upserted into a Parquet table

flights ─ the data as records     stage ─ the cluster and the Spark session that a job runs on
"""
