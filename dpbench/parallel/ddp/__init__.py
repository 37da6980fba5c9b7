"""DistributedDataParallel. Read `reducer` first, then `buckets`, `usage` and `comm_hook`."""
