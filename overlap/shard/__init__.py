"""What is sharded, and where every element lives."""
