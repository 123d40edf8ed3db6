"""Steps: iterations of serving engines and of training loops. Pure."""
