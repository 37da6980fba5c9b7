"""Records of trials and of measured collectives, and of the environment that they ran in."""
