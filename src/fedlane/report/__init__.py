"""The report plane: tables, figures and pages from results. It never simulates."""
