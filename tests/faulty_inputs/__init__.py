"""What can be wrong with a file or a command line, by subject; test_faulty_inputs.py says what must hold for all."""
