"""Diagnosis: reads a run the way an engineer would, and says what is wrong, who causes it, and what it costs."""
