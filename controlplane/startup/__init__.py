"""The control plane's program: settings, stores, listeners, from start to orderly stop."""
