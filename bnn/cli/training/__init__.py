"""How `bayesianize train` turns flags into a recipe, checks it, and tells what came of it."""
