"""Speed against OpenSSH and the published peer: ratios of medians, taken in turns in one run."""
