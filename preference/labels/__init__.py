"""Labels: what the steps of a finished tree are worth. A file each; `preference.rewards` has the table of them."""
