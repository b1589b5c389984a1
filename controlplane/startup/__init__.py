"""The program of a control plane: settings, stores opened as they say, listeners, from start to orderly stop."""
