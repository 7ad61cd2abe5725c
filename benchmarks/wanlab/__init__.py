"""A small wide-area network on one Linux machine: see `lab.py` and docs/wanlab.md."""
