"""The app that a testbed runs: a perceptron of any size, written in NumPy, on the embedded images.

Flower starts a process for every message, and the time of its imports is part of every delay, so imports are few.
"""
