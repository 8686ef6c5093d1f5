"""How `bayesianize predict` reads inputs, answers and abstains."""
