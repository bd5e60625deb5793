"""Keys of commands: sections, recipes, environment, options."""
