"""Sierra's benchmarks of customer service: tau-bench, tau2-bench, and tau2-bench as it was in June
2025.
"""
