"""What every area of the control plane shares, and what an area contributes."""
