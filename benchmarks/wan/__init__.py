"""Rounds over thin and unequal links: see `__main__.py`."""
