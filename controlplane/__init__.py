"""The control plane: decides, commits and remembers. See docs/architecture.md."""
