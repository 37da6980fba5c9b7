"""From one worker and a network to thousands of replicas."""
