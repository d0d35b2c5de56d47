"""What the page says of claims: the first screen, the cards, every study with its findings, and what is kept."""
