"""Public toy environments, fakes and contract suites; imported by nothing else in the package."""
