"""Theorem 4, Lemma 6 and equation 6: what is salient is learned first, and entropy comes back."""
