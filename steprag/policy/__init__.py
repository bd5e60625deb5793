"""One request to a language model: the client, its replies, how fast it is asked, what it may cost."""
