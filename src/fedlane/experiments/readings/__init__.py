"""The map of readings: which of the paper's claims depend on what the paper leaves out.

`axes` lists what the paper does not say, `design` spreads readings over it, `mapping` judges every claim under every
reading, and `shares` condenses the verdicts into tables, a picture and two sentences.
"""
