"""Tables: rows of a CSV file as inputs, with what it takes to read more of them."""
