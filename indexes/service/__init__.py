"""An index folder over HTTP."""
