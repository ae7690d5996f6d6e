"""Settings: frozen, validated, written once."""
