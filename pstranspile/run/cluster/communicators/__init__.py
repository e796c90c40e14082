"""The communicators of trainers: what sends and fetches beside the steps, in each mode."""
