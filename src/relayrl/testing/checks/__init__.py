"""The checks that the contract suites consist of."""
