"""What both web pages share: who may ask (`guard`), the listening socket (`listening`), a page's files (`assets`)."""
