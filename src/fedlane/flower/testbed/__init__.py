"""`fedlane testbed`: a real federation on one machine, over links whose rates are shaped by the kernel."""
