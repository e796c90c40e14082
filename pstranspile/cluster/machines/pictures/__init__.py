"""What is seen of a run: charts, traces, counts of messages."""
