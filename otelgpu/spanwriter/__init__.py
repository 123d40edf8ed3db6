"""What is done with each row of operations, by a small library in C. Pure: nothing is read, kept or sent."""
