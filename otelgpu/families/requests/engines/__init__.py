"""What the processes of serving engines say to each other: ``messages`` knows whose it is, the others the layouts."""
