"""The shipped customer-service domains, one folder each, and `authoring`, which makes their tasks."""
