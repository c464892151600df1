"""What came out of a run: its record, figures, files and report."""
