"""The formats of Tidelog's own streams (`wire/internal_streams.py`): keys of the coordinators' records of groups,
cursors and transactions, with the subjects of these coordinators; the events of the activity stream; the records of the
audit trail. It imports `wire.operations` and the top floor."""
