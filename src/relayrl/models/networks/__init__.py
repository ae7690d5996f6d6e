"""Networks, and what they may know about their input."""
