"""What the fuzzer is made of: odd values, generators of cases, and the judge that runs them (`benchmarks/fuzz.py`)."""
