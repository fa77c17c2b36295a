"""This project against its peers, side by side in one run: `python -m bench --list`.

The command (`__main__`) goes through the `catalogue`; each benchmark starts ranks (`launching`), on which
contestants take turns (`contest`) and send back seconds (`cases`), of which the command makes estimates,
rows and a table (`estimates`, `rows`).
"""
