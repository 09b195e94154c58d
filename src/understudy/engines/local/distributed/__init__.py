"""Training with several processes: collectives and FSDP."""
