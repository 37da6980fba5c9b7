"""Training without a processor to train on: computing and links are waits of known length."""
