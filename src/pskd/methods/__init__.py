"""How a model is taught: one file per method, the equation and its card in each."""
