"""How good the program is on public pictures: one command for each set, a JSON file for each result.

python -m benchmarks.real SET [ROW ...] --data DIR --out DIR --seeds 0,1,2
"""
