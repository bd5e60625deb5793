"""Many questions, nothing paid twice: the work list, the journal of calls, concurrency."""
