"""Links to training frameworks. Each module needs its framework installed."""
