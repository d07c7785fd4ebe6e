"""The app that a testbed runs: a small network on the embedded images, in NumPy alone, of whatever size is asked.

Every message of Flower's starts a process: what it imports is part of every delay, so nothing heavy is.
"""
