"""What a claim, a finding and a verdict are, and how a study is carried out. Knows no study."""
