"""The index folder: manifest, sealing, add-ons."""
