"""The operations of the API with the forms of their requests and answers (`api_operations.py`), how calls and endpoints
are made of them (`operation.py`), the routes of streams, the reports of brokers, and the JSON codec of them all. It
imports the top floor alone."""
