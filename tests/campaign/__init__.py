"""Random kills, hostile inputs, damaged files and failing systems; `make campaign PART=kills|inputs|damage|faults`.

A part is a module with `cases(seed, directory)`. Its cases are independent of each other; what several of them need is
made once in `directory`. `test_campaign.py` runs a few of each part in the slow suite.
"""
