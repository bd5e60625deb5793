"""What lies on disk: JSON Lines, packed and sealed files, questions, training rows."""
