"""The architectures that can be trained: one file each; they import only torch and each other's
helpers.

The modules are imported as `dpbench.architectures.NAME`.
"""
