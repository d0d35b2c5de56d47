"""Deep and thin against shallow and wide at equal size (MobileLLM)."""
