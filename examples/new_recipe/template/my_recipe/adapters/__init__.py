"""What carries the formula into verl; everything that imports verl, Ray or vLLM stands here."""
