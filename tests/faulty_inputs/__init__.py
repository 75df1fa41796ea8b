"""What can be wrong with a file or a command line, by subject; the law for all of it is in test_faulty_inputs.py."""
