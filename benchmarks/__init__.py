"""Programs that measure, print a table and write JSON below `results/`."""
