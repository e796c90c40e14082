"""Mode geo: trainers update their own parameters and exchange what changed every few steps."""
