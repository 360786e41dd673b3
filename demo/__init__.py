"""The scripted model: it stands in for a real one where there is no key, and says so."""
