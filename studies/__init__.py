"""Job files of real systems, and one folder per reproduced figure."""
