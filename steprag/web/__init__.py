"""What both web pages share: the application (`app`), who may ask (`guard`), the socket (`listening`)."""
