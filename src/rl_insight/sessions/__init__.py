"""Sessions as a whole: their fields, and how an owner's reports and everybody's phases become one record."""
