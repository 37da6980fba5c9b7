"""DataParallel: replicas in the threads of one process."""
