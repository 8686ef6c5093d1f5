"""`python -m bnn` is `bayesianize`."""

from bnn.cli import main

if __name__ == "__main__":
    main()
