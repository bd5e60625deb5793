"""Parts that both web pages share: the application (`app`), access (`guard`), the socket (`listening`)."""
