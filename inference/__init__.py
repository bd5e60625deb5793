"""Questions, a model and an index in; predictions and scores out. The same agent that the search explored."""
