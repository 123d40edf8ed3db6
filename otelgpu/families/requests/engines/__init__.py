"""Messages between the processes of serving engines: ``messages`` detects the engine, the others read its layouts."""
