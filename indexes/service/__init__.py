"""An index folder over HTTP (`POST /retrieve`, as Search-R1 asks). Command: `steprag index serve`."""
