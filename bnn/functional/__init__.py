"""Pure mathematics on tensors: the paper's section 3 is `bnn.functional.inducing`."""
