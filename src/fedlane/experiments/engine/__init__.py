"""The engine under `fedlane sweep` and `fedlane reproduce`: batches of work in, stored tables out.

A cell is a scenario, a policy and seeds. Cells are split into batches, which follow from the list of cells alone. A
batch has a key made from everything that changes its result, it is computed on one thread, and its result is stored
under its key as one Parquet file. So the same cells give the same files in one process, in several, and on Ray.
"""
