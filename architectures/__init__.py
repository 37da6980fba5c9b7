"""What is trained: one file is one architecture; each imports torch and its own kin only.

The modules are imported as `dpbench.architectures.NAME`.
"""
