#!/bin/bash
cat > /app/median.py <<'END'
def median(numbers):
    if not numbers:
        raise ValueError("the median of nothing")
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
END
