"""TRL as the trainer, a file a stage."""
