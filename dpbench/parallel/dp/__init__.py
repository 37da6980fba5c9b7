"""DataParallel: the replicas of one process, a thread each."""
